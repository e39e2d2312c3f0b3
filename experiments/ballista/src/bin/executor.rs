//! A Ballista executor in push mode, whose tasks share one pool of memory.

use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use millstream_ballista_experiments::codec::Codec;
use millstream_ballista_experiments::logging::log_to;
use millstream_ballista_experiments::process::{
    FLIGHT_PORT, GRPC_PORT, HEARTBEAT, Options, Result, end_with_parent, policy,
};
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<()> {
    end_with_parent();
    let options = Options::from_arguments(std::env::args().skip(1))?;
    log_to(&options.folder.join("log"))?;
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(options.memory)))
        .with_temp_file_path(options.folder.join("spilled"))
        .build_arc()?;
    let config = ExecutorProcessConfig {
        executor_id: options.name,
        bind_host: options.address.to_string(),
        external_host: Some(options.address.to_string()),
        port: FLIGHT_PORT,
        grpc_port: GRPC_PORT,
        scheduler_host: "127.0.0.1".into(),
        scheduler_port: options.scheduler,
        vcores: options.cores,
        task_scheduling_policy: policy(),
        work_dir: options.folder.join("work").to_str().map(str::to_owned),
        executor_heartbeat_interval_seconds: HEARTBEAT.as_secs(),
        // Without a number, Ballista puts a pool for each task in the place of that of the runtime.
        memory_pool_size: Some(0),
        override_runtime_producer: Some(Arc::new(move |_| Ok(Arc::clone(&runtime)))),
        override_physical_codec: Some(Arc::new(Codec::default())),
        ..ExecutorProcessConfig::default()
    };
    fs_err::create_dir_all(options.folder.join("work"))?;
    Ok(start_executor_process(Arc::new(config)).await?)
}
