import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import java.net.InetSocketAddress;

/**
 * Canal's own client as its manual shows it: gets, counts the rows, acks. Started by protocol.py: PORT DESTINATION FILTER ROWS BATCH.
 * Prints the rows and the nanoseconds from its first get to the ack of the last.
 */
public class ProtocolClient {
    public static void main(String[] words) throws Exception {
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0]));
        CanalConnector connector = CanalConnectors.newSingleConnector(address, words[1], "", "");
        connector.connect();
        connector.subscribe(words[2]);
        long wanted = Long.parseLong(words[3]), rows = 0, begun = System.nanoTime();
        while (rows < wanted) {
            Message message = connector.getWithoutAck(Integer.parseInt(words[4]));
            if (message.getId() == -1) {
                Thread.sleep(1);
                continue;
            }
            for (CanalEntry.Entry entry : message.getEntries()) {
                if (entry.getEntryType() == CanalEntry.EntryType.ROWDATA) {
                    rows += CanalEntry.RowChange.parseFrom(entry.getStoreValue()).getRowDatasCount();
                }
            }
            connector.ack(message.getId());
        }
        System.out.println(rows + " " + (System.nanoTime() - begun));
        System.exit(0);
    }
}
