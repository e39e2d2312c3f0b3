//! Shared by the tests of several crates: folders of test data, real servers (web, FTP, SSH, S3, databases, queues), a
//! mail server, a faulty web server, a proxy that breaks connections, certificates, file systems that fill up, and a
//! thread without the rights of root.
//!
//! It is for tests only: errors panic, with a message that says what to install or check.

mod authority;
mod fault_server;
mod guarded;
mod kafka;
mod mariadb;
mod modules;
mod mount;
mod nginx;
mod postgres;
mod process;
mod proftpd;
mod proxy;
mod python;
mod redis;
mod rights;
mod s3_server;
mod smtp;
mod sshd;
mod tree;

pub use authority::{Authority, Certificate, Validity};
pub use fault_server::{Answer, Fault, FaultServer, Object, Plan, Request};
pub use kafka::{Kafka, KafkaOptions, PatientProducer};
pub use mariadb::{MariaDb, MariaDbOptions};
pub use modules::{Module, is_test, modules};
pub use mount::Mount;
pub use nginx::{Nginx, free_port};
pub use postgres::{Postgres, PostgresOptions};
pub use proftpd::{PASSWORD, Proftpd, ProftpdOptions, USER};
pub use proxy::{Break, Proxy};
pub use python::python_with_libraries;
pub use redis::{Redis, RedisOptions};
pub use rights::without_rights;
pub use s3_server::{KEY, S3Server, SECRET, Trouble};
pub use smtp::{Mail, SmtpServer};
pub use sshd::{Agent, KeyPair, Sshd};
pub use tree::TempTree;
