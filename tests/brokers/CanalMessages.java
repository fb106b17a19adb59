import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import com.alibaba.otter.canal.connector.core.producer.MQMessageUtils;
import com.alibaba.otter.canal.connector.core.util.CanalMessageSerializerUtil;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.CanalPacket;
import com.alibaba.otter.canal.protocol.FlatMessage;
import com.alibaba.otter.canal.protocol.Message;
import com.google.protobuf.ByteString;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.TreeMap;

/**
 * What Canal's own code makes of entries: a question a line, fields by tabs, binary ones in hexadecimal; answers by blanks in one line.
 * flat|packets TOPIC DYNAMIC_TOPIC PARTITIONS HASH DATABASE_HASH BATCH_ID TS MESSAGES, whole BATCH_ID MESSAGES, text TEXT
 */
public class CanalMessages {
    public static void main(String[] words) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] asked = line.split("\t", -1);
            List<String> said = new ArrayList<>();
            if (asked[0].equals("text")) {
                String text = new String(bytes(asked[1]), StandardCharsets.UTF_8);
                said.add(hex(JSON.toJSONBytes(Collections.singletonMap(text, text), JSONWriter.Feature.WriteNulls)));
            } else if (asked[0].equals("whole")) {
                List<ByteString> entries = CanalPacket.Messages.parseFrom(bytes(asked[2])).getMessagesList();
                said.add(hex(CanalMessageSerializerUtil.serializer(new Message(Long.parseLong(asked[1]), true, entries), true)));
            } else {
                routed(asked, said);
            }
            System.out.println(String.join(" ", said));
        }
    }

    private static void routed(String[] asked, List<String> said) throws Exception {
        long id = Long.parseLong(asked[6]);
        List<CanalEntry.Entry> entries = new ArrayList<>();
        for (ByteString each : CanalPacket.Messages.parseFrom(bytes(asked[8])).getMessagesList()) {
            entries.add(CanalEntry.Entry.parseFrom(each));
        }
        TreeMap<String, Message> topics = new TreeMap<>();
        if (asked[2].isEmpty()) {
            topics.put(asked[1], new Message(id, entries));
        } else {
            for (var each : MQMessageUtils.messageTopics(new Message(id, entries), asked[1], asked[2]).entrySet()) {
                topics.put(each.getKey().replace('.', '_'), each.getValue());
            }
        }
        for (var topic : topics.entrySet()) {
            List<CanalEntry.Entry> own = topic.getValue().getEntries();
            MQMessageUtils.EntryRowData[] datas = new MQMessageUtils.EntryRowData[own.size()];
            for (int i = 0; i < datas.length; i++) {
                datas[i] = new MQMessageUtils.EntryRowData();
                datas[i].entry = own.get(i);
                datas[i].rowChange = CanalEntry.RowChange.parseFrom(own.get(i).getStoreValue());
            }
            int partitions = Integer.parseInt(asked[3]);
            boolean databaseHash = Boolean.parseBoolean(asked[5]);
            if (asked[0].equals("flat")) {
                flat(topic.getKey(), datas, id, partitions, asked[4], databaseHash, Long.parseLong(asked[7]), said);
            } else if (asked[4].isEmpty()) {
                said.add(topic.getKey() + ":0:" + hex(CanalMessageSerializerUtil.serializer(topic.getValue(), true)));
            } else {
                Message[] parts = MQMessageUtils.messagePartition(datas, id, partitions, asked[4], databaseHash);
                for (int i = 0; i < parts.length; i++) {
                    if (parts[i] != null) {
                        said.add(topic.getKey() + ":" + i + ":" + hex(CanalMessageSerializerUtil.serializer(parts[i], true)));
                    }
                }
            }
        }
    }

    private static void flat(
        String topic, MQMessageUtils.EntryRowData[] datas, long id, int partitions, String hash, boolean databaseHash, long ts, List<String> said
    ) {
        for (FlatMessage message : MQMessageUtils.messageConverter(datas, id)) {
            message.setTs(ts);
            FlatMessage[] parts =
                hash.isEmpty() ? new FlatMessage[] {message} : MQMessageUtils.messagePartition(message, partitions, hash, databaseHash);
            for (int i = 0; i < parts.length; i++) {
                if (parts[i] != null) {
                    said.add(topic + ":" + i + ":" + hex(JSON.toJSONBytes(parts[i], JSONWriter.Feature.WriteNulls)));
                }
            }
        }
    }

    private static byte[] bytes(String text) {
        return java.util.HexFormat.of().parseHex(text);
    }

    private static String hex(byte[] data) {
        return data == null ? "-" : java.util.HexFormat.of().formatHex(data);
    }
}
