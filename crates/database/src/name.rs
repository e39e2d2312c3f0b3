//! Which table a URL and a table's name mean, however they are written.

use millstream_core::source::TableName;

/// The ports of the protocols; names are compared in builds without these databases, too.
pub(crate) const MYSQL_PORT: u16 = 3306;
pub(crate) const POSTGRES_PORT: u16 = 5432;

/// The table `table` of the database at `url`: `postgres://u@h/d`, `sqlite:x.db`. Two spellings of one table have equal
/// names. `None` if `url` is not the URL of a database.
pub fn table_name(url: &str, table: &str) -> Option<TableName> {
    // The schema that PostgreSQL looks into by itself.
    let table = table.strip_prefix("public.").unwrap_or(table);
    Some(TableName { database: database(url)?, table: table.to_owned() })
}

fn database(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once(':')?;
    let (scheme, port) = match scheme.to_ascii_lowercase().as_str() {
        "mysql" | "mariadb" => ("mysql", MYSQL_PORT),
        "postgres" | "postgresql" => ("postgres", POSTGRES_PORT),
        "sqlite" => {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            return Some(format!("sqlite:{}", std::path::absolute(path).ok()?.display()));
        }
        _ => return None,
    };
    let rest = rest.strip_prefix("//")?.split('?').next()?;
    let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = host.strip_suffix(&format!(":{port}")).unwrap_or(host).to_ascii_lowercase();
    Some(format!("{scheme}://{host}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::table_name;

    #[test]
    fn one_table_has_one_name() {
        for (one, other, same) in [
            (("mysql://u@h/d", "t"), ("mariadb://v:p@H:3306/d?tls=off", "t"), true),
            (("postgres://h/d", "public.t"), ("postgresql://h:5432/d", "t"), true),
            (("sqlite:./a.db", "t"), ("sqlite://a.db", "t"), true),
            (("postgres://h/d", "t"), ("postgres://h/e", "t"), false),
            (("postgres://h/d", "t"), ("postgres://h/d", "s"), false),
            (("postgres://h:5433/d", "t"), ("postgres://h/d", "t"), false),
            (("mysql://h/d", "t"), ("postgres://h/d", "t"), false),
        ] {
            let names = (table_name(one.0, one.1), table_name(other.0, other.1));
            assert!(names.0.is_some() && names.1.is_some(), "{one:?} and {other:?}");
            assert_eq!(names.0 == names.1, same, "{one:?} and {other:?}");
        }
        assert_eq!(table_name("s3://bucket/a", "t"), None);
        assert_eq!(table_name("a.csv", "t"), None);
    }
}
