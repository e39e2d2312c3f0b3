//! An S3 server whose buckets are the folders of one folder. Anyone may read them.
//!
//! ```text
//! s3-server FOLDER
//! ```
//!
//! It prints its port, serves on loopback with one thread for the network, and ends when its standard input does.

use std::io;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: s3-server FOLDER");
        return ExitCode::FAILURE;
    };
    let files = match FileSystem::new(folder) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("s3-server: {error:?}");
            return ExitCode::FAILURE;
        }
    };
    // Ends the process, and with it every connection, when the parent process ends.
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(0);
    });
    match serve(S3ServiceBuilder::new(files).build()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("s3-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(service: S3Service) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = service.clone();
            tokio::spawn(async move {
                // A client that disconnects is no error.
                let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}
