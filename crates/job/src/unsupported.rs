//! Places that other tools read from or write to, and Millstream does not: what to do instead, by the beginning of a
//! URL. The guide's page "What is not supported" says the same at length.

/// What to do about a place that is not supported.
pub(crate) struct Unsupported {
    name: &'static str,
    /// To read from it.
    read: &'static str,
    /// To write to it.
    write: &'static str,
}

const FETCH: &str = "let a program fetch the data, whose output is read: `command: [./fetch]` in place of `read`";
const SEND: &str = "write a file, and send it in `after`, or let a program send the rows: `command: [./send]` in place \
                    of `write`";

const FILE_SYSTEM: (&str, &str) = (
    "mount it, or let a program fetch the files: `command: [./fetch]` in place of `read`",
    "mount it, or write a file, and send it in `after`",
);
const DATABASE: (&str, &str) = (
    "let it export files, such as Parquet, or let a program print its rows: `command: [./export]` in place of `read`",
    "write files, such as Parquet in a bucket, and let its own loader load them",
);
const QUEUE: (&str, &str) = (
    "let a program write what comes to files, and read these, with `incremental: true`",
    "let a program send the rows: `command: [./send]` in place of `write`",
);

/// The place to which URLs with `scheme` lead, if other tools know it.
fn place(scheme: &str) -> Option<(&'static str, (&'static str, &'static str))> {
    Some(match scheme {
        "hdfs" | "webhdfs" | "viewfs" => ("HDFS", FILE_SYSTEM),
        "smb" | "cifs" => ("SMB", FILE_SYSTEM),
        "nfs" => ("NFS", FILE_SYSTEM),
        "webdav" | "webdavs" | "dav" | "davs" => ("WebDAV", FILE_SYSTEM),
        "gdrive" | "drive" => ("Google Drive", FILE_SYSTEM),
        "sharepoint" => ("SharePoint", FILE_SYSTEM),
        "dbfs" => ("DBFS", FILE_SYSTEM),
        "mssql" | "sqlserver" | "tds" => ("SQL Server", DATABASE),
        "oracle" => ("Oracle", DATABASE),
        "db2" => ("Db2", DATABASE),
        "bigquery" => ("BigQuery", DATABASE),
        "snowflake" => ("Snowflake", DATABASE),
        "redshift" => ("Redshift", DATABASE),
        "clickhouse" => ("ClickHouse", DATABASE),
        "mongodb" | "mongodb+srv" => ("MongoDB", DATABASE),
        "duckdb" => ("DuckDB", DATABASE),
        "cassandra" => ("Cassandra", DATABASE),
        "elasticsearch" | "opensearch" => ("Elasticsearch", DATABASE),
        "jdbc" => ("JDBC", DATABASE),
        "odbc" => ("ODBC", DATABASE),
        "kafka" => ("Kafka", QUEUE),
        "amqp" | "amqps" | "rabbitmq" => ("RabbitMQ", QUEUE),
        "redis" | "rediss" => ("Redis", QUEUE),
        "nats" => ("NATS", QUEUE),
        "mqtt" | "mqtts" => ("MQTT", QUEUE),
        "scp" | "rsync" => ("this protocol", (FETCH, SEND)),
        "http" | "https" => ("a web server", (FETCH, SEND)),
        "ftp" | "ftps" => ("FTP", (FETCH, SEND)),
        "sftp" => ("SFTP", (FETCH, SEND)),
        _ => return None,
    })
}

impl Unsupported {
    /// The place to which URLs with `scheme` lead, which Millstream cannot use.
    pub(crate) fn of(scheme: &str) -> Option<Self> {
        let (name, (read, write)) = place(&scheme.to_ascii_lowercase())?;
        Some(Unsupported { name, read, write })
    }

    /// The hint for a source.
    pub(crate) fn to_read(&self) -> String {
        format!("reading from {} is not supported: {}", self.name, self.read)
    }

    /// The hint for a sink.
    pub(crate) fn to_write(&self) -> String {
        format!("writing to {} is not supported: {}", self.name, self.write)
    }
}
