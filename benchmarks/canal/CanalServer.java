import com.alibaba.otter.canal.instance.manager.CanalInstanceWithManager;
import com.alibaba.otter.canal.instance.manager.model.Canal;
import com.alibaba.otter.canal.instance.manager.model.CanalParameter;
import com.alibaba.otter.canal.parse.inbound.mysql.AbstractMysqlEventParser;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import com.alibaba.otter.canal.sink.entry.EntryEventSink;
import java.net.InetSocketAddress;
import java.util.Arrays;

/**
 * Canal's own server as it is, all in memory: one destination, read from a place in the binlog, until its input ends. Started by
 * server.py: PORT DESTINATION MYSQL_PORT FILE OFFSET FILTER SERVER_ID USER PASSWORD [GTIDS]
 */
public class CanalServer {
    public static void main(String[] words) throws Exception {
        CanalParameter settings = new CanalParameter();
        settings.setCanalId(1L);
        settings.setMetaMode(CanalParameter.MetaMode.MEMORY);
        settings.setIndexMode(CanalParameter.IndexMode.MEMORY);
        settings.setHaMode(CanalParameter.HAMode.HEARTBEAT);
        settings.setStorageMode(CanalParameter.StorageMode.MEMORY);
        settings.setStorageBatchMode(CanalParameter.BatchMode.valueOf(System.getProperty("batchMode", "MEMSIZE")));
        settings.setDdlIsolation(Boolean.getBoolean("ddlIsolation"));
        settings.setMemoryStorageBufferSize(16384);
        settings.setMemoryStorageBufferMemUnit(1024);
        settings.setSourcingType(CanalParameter.SourcingType.MYSQL);
        settings.setDbAddresses(Arrays.asList(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[2]))));
        settings.setDbUsername(words[7]);
        settings.setDbPassword(words[8]);
        settings.setDefaultDatabaseName("mysql");
        settings.setPositions(Arrays.asList("{\"journalName\":\"" + words[3] + "\",\"position\":" + words[4] + (words.length > 9 ? ",\"gtid\":\"" + words[9] + "\"}" : "}")));
        settings.setSlaveId(Long.parseLong(words[6]));
        settings.setConnectionCharset("UTF-8");
        settings.setConnectionCharsetNumber((byte) 33);
        settings.setDefaultConnectionTimeoutInSeconds(30);
        settings.setReceiveBufferSize(64 * 1024);
        settings.setSendBufferSize(64 * 1024);
        settings.setDetectingEnable(false);
        settings.setDetectingIntervalInSeconds(5);
        settings.setTransactionSize(1024);
        settings.setTsdbEnable(false);
        settings.setGtidEnable(words.length > 9);
        settings.setParallel(true);
        Canal canal = new Canal();
        canal.setId(1L);
        canal.setName(words[1]);
        canal.setCanalParameter(settings);
        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(destination -> filtered(new CanalInstanceWithManager(canal, words[5])));
        embedded.setMetricsPort(0);
        CanalServerWithNetty server = CanalServerWithNetty.instance();
        server.setIp("127.0.0.1");
        server.setPort(Integer.parseInt(words[0]));
        server.start();
        embedded.start(words[1]);
        System.out.println("ready");
        while (System.in.read() >= 0) {
            // whoever started it is still there
        }
        Runtime.getRuntime().halt(0);
    }

    /** Sets what instance.properties would: -Dfilters=ddl,dcl,dml,rows,transaction. */
    private static CanalInstanceWithManager filtered(CanalInstanceWithManager instance) {
        String filters = System.getProperty("filters", "");
        AbstractMysqlEventParser parser = (AbstractMysqlEventParser) instance.getEventParser();
        parser.setFilterQueryDdl(filters.contains("ddl"));
        parser.setFilterQueryDcl(filters.contains("dcl"));
        parser.setFilterQueryDml(filters.contains("dml"));
        parser.setFilterRows(filters.contains("rows"));
        ((EntryEventSink) instance.getEventSink()).setFilterTransactionEntry(filters.contains("transaction"));
        return instance;
    }
}
