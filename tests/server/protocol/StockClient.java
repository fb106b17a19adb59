import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import java.net.InetSocketAddress;

/**
 * Canal's own client as its manual shows it: subscribes, gets without an ack, rolls back, leaves, comes again, gets and acks.
 * Prints the name, value and flags of every column, a line each, of the second time; started by test_canal_java.py.
 */
public class StockClient {
    public static void main(String[] words) throws Exception {
        int wanted = Integer.parseInt(words[3]);
        CanalConnector connector = connect(words);
        int first = take(connector, wanted, false);
        connector.rollback();
        take(connector, wanted, false);
        connector.disconnect();
        connector = connect(words);
        int again = take(connector, wanted, true);
        connector.unsubscribe();
        connector.disconnect();
        System.out.println("rows " + first + " " + again);
        System.exit(0);
    }

    private static CanalConnector connect(String[] words) {
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0]));
        CanalConnector connector = CanalConnectors.newSingleConnector(address, words[1], words[4], words[5]);
        connector.connect();
        connector.subscribe(words[2]);
        return connector;
    }

    private static int take(CanalConnector connector, int wanted, boolean settled) throws Exception {
        int rows = 0;
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (rows < wanted && System.nanoTime() < deadline) {
            Message message = connector.getWithoutAck(64);
            if (message.getId() == -1) {
                Thread.sleep(20);
                continue;
            }
            for (CanalEntry.Entry entry : message.getEntries()) {
                rows += entry.getEntryType() == CanalEntry.EntryType.ROWDATA ? shown(entry, settled) : 0;
            }
            if (settled) {
                connector.ack(message.getId());
            }
        }
        return rows;
    }

    private static int shown(CanalEntry.Entry entry, boolean settled) throws Exception {
        CanalEntry.RowChange change = CanalEntry.RowChange.parseFrom(entry.getStoreValue());
        for (CanalEntry.RowData row : change.getRowDatasList()) {
            for (CanalEntry.Column column : row.getAfterColumnsList()) {
                if (settled) {
                    System.out.println("column " + column.getName() + " " + column.getValue() + " " + column.getIsKey());
                }
            }
        }
        return change.getRowDatasCount();
    }
}
