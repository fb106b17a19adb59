import com.github.shyiko.mysql.binlog.BinaryLogClient;
import com.github.shyiko.mysql.binlog.event.DeleteRowsEventData;
import com.github.shyiko.mysql.binlog.event.EventData;
import com.github.shyiko.mysql.binlog.event.EventHeaderV4;
import com.github.shyiko.mysql.binlog.event.UpdateRowsEventData;
import com.github.shyiko.mysql.binlog.event.WriteRowsEventData;
import com.github.shyiko.mysql.binlog.network.SSLMode;
import java.io.IOException;

/**
 * Reads an interval of a binlog with mysql-binlog-connector-java as its manual shows it, and counts the decoded rows. Started by contenders.py.
 * Arguments: host, port, user, file, start, end, and "tls" for a connection with TLS.
 *
 * The program reads the interval twice, because Java compiles the code during the first reading. It prints the rows and the nanoseconds of the
 * second reading.
 */
public class JavaConnector {
    private static final int TURNS = 2;

    public static void main(String[] words) throws Exception {
        String result = "";
        for (int turn = 0; turn < TURNS; turn++) {
            BinaryLogClient client = new BinaryLogClient(words[0], Integer.parseInt(words[1]), words[2], "");
            client.setSSLMode(words.length > 6 ? SSLMode.REQUIRED : SSLMode.DISABLED);
            result = read(client, words[3], Long.parseLong(words[4]), Long.parseLong(words[5]));
        }
        System.out.println(result);
        System.exit(0);
    }

    private static String read(BinaryLogClient client, String file, long start, long end) throws IOException {
        client.setServerId(4000003);
        client.setBinlogFilename(file);
        client.setBinlogPosition(start);
        client.setKeepAlive(false);
        long[] rows = {0}, nanoseconds = {0};
        long begun = System.nanoTime();
        client.registerEventListener(event -> {
            rows[0] += rowsOf(event.getData());
            EventHeaderV4 header = event.getHeader();
            if (header.getNextPosition() >= end && nanoseconds[0] == 0) {
                nanoseconds[0] = System.nanoTime() - begun;
                try {
                    client.disconnect();
                } catch (IOException closed) {
                    // it is done with
                }
            }
        });
        client.connect();
        return rows[0] + " " + nanoseconds[0];
    }

    private static int rowsOf(EventData data) {
        if (data instanceof WriteRowsEventData) {
            return ((WriteRowsEventData) data).getRows().size();
        }
        if (data instanceof UpdateRowsEventData) {
            return ((UpdateRowsEventData) data).getRows().size();
        }
        return data instanceof DeleteRowsEventData ? ((DeleteRowsEventData) data).getRows().size() : 0;
    }
}
