import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What RocketMQ's own client reads: a question a line, TOPIC QUEUE; answered by the messages in one line after the word read, each BODY:TAG:ID.
 * Body and tag in hexadecimal; other lines are its log.
 * NAME_SERVERS ACCESS_KEY SECRET BROKER
 */
public class RocketMessages {
    public static void main(String[] words) throws Exception {
        AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(words[1], words[2]));
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("tests", hook);
        consumer.setNamesrvAddr(words[0]);
        consumer.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] asked = line.split("\t", -1);
            MessageQueue queue = new MessageQueue(asked[0], words[3], Integer.parseInt(asked[1]));
            List<String> said = new ArrayList<>();
            try {
                long next = 0;
                while (true) {
                    PullResult found = consumer.pull(queue, "*", next, 256);
                    next = found.getNextBeginOffset();
                    if (found.getPullStatus() != PullStatus.FOUND) {
                        break;
                    }
                    for (MessageExt each : found.getMsgFoundList()) {
                        String tag = each.getTags() == null ? "" : each.getTags();
                        said.add(hex(each.getBody()) + ":" + hex(tag.getBytes(StandardCharsets.UTF_8)) + ":" + each.getMsgId());
                    }
                }
                System.out.println("read " + String.join(" ", said));
            } catch (Exception error) {
                System.out.println("failed " + error.toString().replace('\n', ' '));
            }
        }
        consumer.shutdown();
        System.exit(0);
    }

    private static String hex(byte[] data) {
        StringBuilder text = new StringBuilder();
        for (byte each : data) {
            text.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        }
        return text.toString();
    }
}
