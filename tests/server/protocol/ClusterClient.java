import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import com.alibaba.otter.canal.protocol.exception.CanalClientException;

/**
 * Canal's own cluster client as its examples show it: asks ZooKeeper for the server, gets and acks, and connects again after each failure.
 * Prints the value of each inserted row's first column, a line each, until it is killed; started by test_canal_cluster_seeds.py.
 */
public class ClusterClient {
    public static void main(String[] words) throws Exception {
        CanalConnector connector = CanalConnectors.newClusterConnector(words[0], words[1], "", "");
        while (true) {
            try {
                connector.connect();
                connector.subscribe(words[2]);
                while (true) {
                    take(connector);
                }
            } catch (CanalClientException error) {
                System.err.println(error);
                Thread.sleep(500);
            }
        }
    }

    private static void take(CanalConnector connector) throws Exception {
        Message message = connector.getWithoutAck(64);
        if (message.getId() == -1) {
            Thread.sleep(20);
            return;
        }
        for (CanalEntry.Entry entry : message.getEntries()) {
            if (entry.getEntryType() == CanalEntry.EntryType.ROWDATA) {
                CanalEntry.RowChange change = CanalEntry.RowChange.parseFrom(entry.getStoreValue());
                for (CanalEntry.RowData row : change.getRowDatasList()) {
                    System.out.println("row " + row.getAfterColumns(0).getValue());
                }
            }
        }
        System.out.flush();
        connector.ack(message.getId());
    }
}
