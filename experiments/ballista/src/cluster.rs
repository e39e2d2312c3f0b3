//! A scheduler in this process, and executors in others, all on loopback addresses.

use crate::codec::Codec;
use crate::process::{CHECK, Executor, Options, Result, policy};
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::task_status;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use ballista_scheduler::scheduler_server::SchedulerServer;
use ballista_scheduler::state::execution_stage::{ExecutionStage, TaskInfo};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Counts sessions and executors of this process, none of which shares a name or an address with another.
static COUNT: AtomicU64 = AtomicU64::new(1);

/// What is the same for all executors of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub cores: usize,
    /// Bytes of the pool that the tasks of an executor share.
    pub memory: usize,
    /// After what time without a word an executor counts as lost.
    pub timeout: Duration,
}

pub struct Cluster {
    scheduler: SchedulerServer<LogicalPlanNode, PhysicalPlanNode>,
    server: JoinHandle<()>,
    port: u16,
    program: PathBuf,
    folder: PathBuf,
    settings: Settings,
    pub executors: Vec<Executor>,
}

/// How far a stage of the running job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    pub id: usize,
    pub attempt: usize,
    pub running: bool,
    pub successful: bool,
    /// Tasks that have been started, and those of them that have ended well.
    pub tasks: usize,
    pub done: usize,
    /// Bytes that its tasks have spilled, as far as they have ended.
    pub spilled: usize,
}

impl Cluster {
    /// Starts a scheduler and so many executors.
    ///
    /// `program` is the executor; `folder` is for what all of them write.
    pub async fn start(program: &Path, folder: &Path, settings: Settings, executors: usize) -> Result<Cluster> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let config = Arc::new(SchedulerConfig {
            external_host: Ipv4Addr::LOCALHOST.to_string(),
            bind_port: port,
            scheduling_policy: policy(),
            executor_timeout_seconds: settings.timeout.as_secs(),
            expire_dead_executor_interval_seconds: CHECK.as_secs(),
            no_executors_grace_period_seconds: 4 * settings.timeout.as_secs(),
            override_physical_codec: Some(Arc::new(Codec::default())),
            ..SchedulerConfig::default()
        });
        let state = BallistaCluster::new_from_config(&config).await?;
        let scheduler = create_scheduler(state, config).await?;
        let served = start_grpc_service_with_listener(listener, scheduler.clone());
        let server = tokio::spawn(async {
            if let Err(error) = served.await {
                log::error!("the scheduler has ended: {error}");
            }
        });
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let mut cluster = Cluster { scheduler, server, port, program, folder, settings, executors: Vec::new() };
        for _ in 0..executors {
            cluster.add_executor().await?;
        }
        Ok(cluster)
    }

    /// Starts one more executor, and waits until the scheduler knows it.
    pub async fn add_executor(&mut self) -> Result<()> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let name = format!("executor-{number}");
        let options = Options {
            address: Ipv4Addr::new(127, high.max(1), low, (number % 250 + 1) as u8),
            scheduler: self.port,
            cores: self.settings.cores,
            memory: self.settings.memory,
            folder: self.folder.join(&name),
            name: name.clone(),
        };
        self.executors.push(Executor::start(&self.program, &options)?);
        let known = async {
            while self.scheduler.state.executor_manager.get_executor_metadata(&name).await.is_err() {
                if let Some(ended) = self.executors.last_mut().and_then(Executor::ended) {
                    return Err(format!("{name} has ended: {ended}"));
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        Ok(timeout(Duration::from_secs(30), known).await??)
    }

    pub fn client(&self) -> Client {
        Client { url: format!("http://{}:{}", Ipv4Addr::LOCALHOST, self.port) }
    }

    /// The stages of the job that is running; only one may run.
    pub async fn stages(&self) -> Vec<Stage> {
        let jobs = self.scheduler.state.task_manager.get_running_job_cache();
        let Some(job) = jobs.values().next() else { return Vec::new() };
        let graph = job.execution_graph.read().await;
        let mut stages: Vec<Stage> = graph.stages().iter().map(|(&id, stage)| describe(id, stage)).collect();
        stages.sort_by_key(|stage| stage.id);
        stages
    }
}

/// Sends plans to a scheduler.
#[derive(Debug, Clone)]
pub struct Client {
    url: String,
}

impl Client {
    /// Runs a plan to its end; the rows are still with the executors, and are fetched by reading the stream.
    pub async fn run(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: SessionConfig,
    ) -> datafusion::error::Result<SendableRecordBatchStream> {
        let session = format!("session-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let (url, ballista) = (self.url.clone(), config.ballista_config());
        execute_physical_plan::<PhysicalPlanNode>(url, &ballista, plan, &Codec::default(), session, config).await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn describe(id: usize, stage: &ExecutionStage) -> Stage {
    let attempt = match stage {
        ExecutionStage::UnResolved(stage) => stage.stage_attempt_num,
        ExecutionStage::Resolved(stage) => stage.stage_attempt_num,
        ExecutionStage::Running(stage) => stage.stage_attempt_num,
        ExecutionStage::Successful(stage) => stage.stage_attempt_num,
        ExecutionStage::Failed(stage) => stage.stage_attempt_num,
    };
    let metrics = match stage {
        ExecutionStage::Running(stage) => stage.stage_metrics.as_deref().unwrap_or_default(),
        ExecutionStage::Successful(stage) => &stage.stage_metrics,
        _ => &[],
    };
    Stage {
        id,
        attempt,
        running: matches!(stage, ExecutionStage::Running(_)),
        successful: matches!(stage, ExecutionStage::Successful(_)),
        tasks: stage.task_infos().map_or(0, <[_]>::len),
        done: stage.task_infos().unwrap_or_default().iter().filter(|task| is_done(task)).count(),
        spilled: metrics.iter().filter_map(MetricsSet::spilled_bytes).sum(),
    }
}

fn is_done(task: &TaskInfo) -> bool {
    matches!(task.task_status, task_status::Status::Successful(_))
}

/// What plans of the experiments are made and run with, where so many partitions are wanted.
///
/// A task takes one partition, so that each partition is handed out by itself.
pub fn session(partitions: usize) -> SessionConfig {
    SessionConfig::new_with_ballista()
        .with_target_partitions(partitions)
        .set_usize("ballista.scheduler.max_partitions_per_task", 1)
}
