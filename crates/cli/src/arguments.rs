//! What the command line may say. Its help and its man page come from here, the commands themselves are elsewhere.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use millstream::cluster::Hours;
use millstream::component::Duration;
use millstream::text::Size;

use crate::rows::TABLE;
use crate::values::Values;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  millstream guess 'data/*.csv.gz' > job.yaml   write a job that reads these files
  millstream check job.yaml                     report everything that is wrong with it, at once
  millstream preview job.yaml                   show the first rows
  millstream test job.yaml                      run its tests, which are in job.test.yaml
  millstream run job.yaml --set DAY=2026-01-31  run it
  millstream sql \"SELECT * FROM 'a.csv.gz'\"     query files without a job
  millstream count 'https://host/{000..999}.gz' count the lines of a thousand files
  millstream cat archive.zip | sort | uniq -c   the decoded text, for other programs

Exit codes:
  0    done
  1    the job failed
  2    the job file or the arguments are wrong
  3    more records were rejected than the job allows
  4    what the job requires does not hold
  130  interrupted";

/// Runs batch jobs: reads compressed files from anywhere, transforms them with SQL, loads them into databases or files.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, styles = STYLES, after_help = EXAMPLES, max_term_width = 100)]
#[command(propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
pub struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Memory for the whole process, such as `512MB` or `2GiB` [default: a quarter of the machine]
    #[arg(long, global = true, value_name = "SIZE", help_heading = "Machine")]
    pub memory: Option<Size>,
    /// Cores that decode and compute [default: all]
    #[arg(long, global = true, value_name = "N", help_heading = "Machine")]
    pub cores: Option<usize>,
    /// Folder for what does not fit in memory [default: the system's temporary folder]. May be repeated, ideally with
    /// each folder on its own disk
    #[arg(long, global = true, value_name = "FOLDER", help_heading = "Machine")]
    pub scratch: Vec<PathBuf>,
    /// File that describes this machine
    #[arg(long, global = true, value_name = "FILE", env = "MILLSTREAM_MACHINE", help_heading = "Machine")]
    pub machine: Option<String>,
    /// Which of the nodes in the machine file this is [default: that with the host's name]
    #[arg(long, global = true, value_name = "NAME", env = "MILLSTREAM_NODE", help_heading = "Machine")]
    pub node: Option<String>,
    /// Folder for the run history [default: millstream in the user's state folder]
    #[arg(long, global = true, value_name = "FOLDER", env = "MILLSTREAM_STATE", help_heading = "Machine")]
    pub state: Option<PathBuf>,
    /// The variables that the command has set, if it is one with a job.
    #[arg(skip)]
    pub set: Vec<(String, String)>,
    /// Print the result as one JSON object on standard output
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// Print no progress, no report and no warnings; errors only
    #[arg(long, short, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub color: Color,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a job or a sequence to its end
    #[command(after_help = "Examples:\n  millstream run job.yaml\n  millstream run job.yaml --memory 512MB --set \
                      DAY=2026-01-31\n  millstream run job.yaml --json > report.json\n  millstream run --resume \
                      job.yaml\n  millstream run job.yaml --for DAY=2026-01-01..2026-01-31")]
    Run(Run),
    /// Start the sequences of a folder when they are due
    #[command(after_help = "Examples:\n  millstream schedule\n  millstream schedule sequences --parallel 4\n  \
                      millstream schedule --list\n  millstream schedule --once")]
    Schedule(Schedule),
    /// Serve pages and an API that show and start what is in a folder, and start its sequences when they are due
    #[cfg(feature = "serve")]
    #[command(after_help = "Examples:\n  millstream serve\n  millstream serve jobs --listen 9000\n  millstream serve \
                      jobs --listen 0.0.0.0:8443 --host etl.example.org --tls-cert cert.pem --tls-key key.pem")]
    Serve(Serve),
    /// Say who may use the server: links, users, and tokens for programs
    #[cfg(feature = "serve")]
    #[command(after_help = "Examples:\n  millstream access link\n  millstream access add-user ada --role operate\n  \
                      millstream access add-token prometheus --role look\n  millstream access list")]
    Access(Access),
    /// Read for the runs of another machine, as long as it has some: see `run --cluster`
    #[command(after_help = "Examples:\n  millstream worker --join etl.example.org\n  millstream worker --join \
                      10.0.0.5:7447 --memory 4GiB --cores 4\n  millstream worker --join 10.0.0.5 --ssh node1 node2 \
                      node3")]
    Worker(Worker),
    /// Make the secret that all machines of a cluster have
    #[command(
        after_help = "Examples:\n  millstream cluster init\n  millstream cluster init /etc/millstream/cluster.pem"
    )]
    Cluster(Cluster),
    /// List the runs so far, or compare one with the run before it
    #[command(
        after_help = "Examples:\n  millstream runs\n  millstream runs --job job.yaml --unfinished\n  millstream runs \
                      last\n  millstream runs 1767225600000-4711 --json\n  millstream runs --watch"
    )]
    Runs(Runs),
    /// Ask runs to stop, as Ctrl-C does, and wait until they have
    #[command(after_help = "Examples:\n  millstream cancel 1767225600000-4711\n  millstream cancel last --no-wait")]
    Cancel(CancelRuns),
    /// Show the report of a run, or write it as a page for browsers and mail
    #[command(after_help = "Examples:\n  millstream report\n  millstream report 1767225600000-4711 --html\n  \
                      millstream report last --html nightly.html\n  millstream report last --html - | mail-it")]
    Report(Report),
    /// Show what a run rejected, and why
    #[command(after_help = "Examples:\n  millstream rejects\n  millstream rejects 1767225600000-4711 --json > \
                      rejects.json\n  millstream rejects last --replay")]
    Rejects(Rejects),
    /// Let sinks forget what they have loaded of incremental sources, so that the next run loads it again
    #[command(after_help = "Examples:\n  millstream forget job.yaml in/a.csv\n  millstream forget job.yaml \
                      's3://bucket/in/2026-01-*' --dry-run\n  millstream forget job.yaml --to \
                      '2026-01-31 12:00:00'")]
    Forget(Forget),
    /// Report everything that is wrong with a job or a sequence, without running it
    #[command(
        after_help = "Examples:\n  millstream check job.yaml\n  millstream check --offline job.yaml\n  millstream \
                      check --schema > job.schema.json"
    )]
    Check(Check),
    /// Run the tests of jobs: small inputs, and the rows that they are expected to give
    #[command(after_help = "Examples:\n  millstream test\n  millstream test load.yaml\n  millstream test jobs --only \
                      totals\n  millstream test load.test.yaml --json")]
    Test(Test),
    /// Show how a job would run: sources, columns, plans, targets; of a sequence its steps and how long they took
    #[command(after_help = "Examples:\n  millstream explain job.yaml\n  millstream explain --cluster job.yaml \
                            --shared /mnt/data")]
    Explain(Explain),
    /// Show the first rows of a step of a job
    #[command(after_help = "Examples:\n  millstream preview job.yaml\n  millstream preview job.yaml places --rows 100")]
    Preview(Preview),
    /// Query files and URLs with SQL
    #[command(after_help = "Examples:\n  millstream sql \"SELECT city, sum(amount) FROM 'sales/*.csv.gz' GROUP BY \
                      city\"\n  millstream sql \"SELECT * FROM 'a.csv' JOIN 's3://bucket/b.parquet' USING (id)\" \
                      --format json > joined.jsonl")]
    Sql(Sql),
    /// Inspect files and write a job that reads them
    #[command(after_help = "Examples:\n  millstream guess 'data/*.csv.gz' > job.yaml\n  millstream guess \
                      https://host/places.zip")]
    Guess(Guess),
    /// Count the lines of files
    #[command(after_help = "Examples:\n  millstream count 'logs/**/*.gz'\n  millstream count --by-unit a.csv.gz \
                      b.csv.zst\n  gzip -dc a.gz | millstream count -")]
    Count(Count),
    /// Write the decoded bytes of files to standard output
    #[command(after_help = "Examples:\n  millstream cat 'logs/**/*.gz' | grep ERROR\n  millstream cat \
                      https://host/archive.zip --member '*.csv'")]
    Cat(Urls),
    /// Print the completions of a shell
    #[command(after_help = "Examples:\n  millstream completions bash > \
                      ~/.local/share/bash-completion/completions/millstream\n  millstream completions fish > \
                      ~/.config/fish/completions/millstream.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page, or write the pages of all commands into a folder
    #[command(
        after_help = "Examples:\n  millstream man | man -l -\n  millstream man --folder /usr/local/share/man/man1"
    )]
    Man {
        /// Where to write the pages of all commands
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Print the reference of the job file, of sequences, or of the machine file, in Markdown
    #[command(hide = true)]
    Reference {
        /// That of the machine file
        #[arg(long, conflicts_with = "of_sequence")]
        of_machine: bool,
        /// That of sequences
        #[arg(long)]
        of_sequence: bool,
    },
}

impl Command {
    /// The variables of its job.
    pub fn variables(&self) -> &[(String, String)] {
        match self {
            Command::Run(run) => &run.job.variables.set,
            Command::Rejects(rejects) => &rejects.variables.set,
            Command::Forget(forget) => &forget.variables.set,
            Command::Check(check) => &check.variables.set,
            Command::Explain(explain) => &explain.job.variables.set,
            Command::Preview(preview) => &preview.variables.set,
            _ => &[],
        }
    }

    /// The variable and its first value that a command looks at which does not run the job.
    pub fn first_value(&self) -> Option<(String, String)> {
        let each = match self {
            Command::Check(check) => &check.each,
            Command::Explain(explain) => &explain.job.each,
            Command::Preview(preview) => &preview.each,
            _ => return None,
        };
        let Values { name, values, .. } = each.values.as_ref()?;
        Some((name.clone(), values.first()?.clone()))
    }
}

/// Variables of a job.
#[derive(Debug, Args)]
pub struct Variables {
    /// Set a variable of the job: `${NAME}` in the job file is then VALUE. May be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable, help_heading = "Job")]
    pub set: Vec<(String, String)>,
}

/// Several values of a variable.
#[derive(Debug, Args)]
pub struct ForValues {
    /// Take one value of a variable after the other: days (`DAY=2026-01-01..2026-01-31`), whole numbers (`PART=1..8`)
    /// or a list (`REGION=north,south`). `run` does the job for each, until one fails, and goes on with `--resume`;
    /// other commands take the first value
    #[arg(long = "for", value_name = "NAME=VALUES", help_heading = "Job")]
    pub values: Option<Values>,
}

/// A job file.
#[derive(Debug, Args)]
pub struct Job {
    /// The job file
    #[arg(value_name = "JOB")]
    pub path: String,
    #[command(flatten)]
    pub variables: Variables,
    #[command(flatten)]
    pub each: ForValues,
}

/// What to run.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub job: Job,
    /// Show every step in the report, including idle ones
    #[arg(long, short)]
    pub verbose: bool,
    /// Resume the last run of the job, however it ended; if there is none, start the job
    #[arg(long)]
    pub resume: bool,
    /// Start again although an earlier run is unfinished; rows that it loaded stay and are loaded again. Of a sequence:
    /// begin this step of the last run anew, and all behind it
    #[arg(long, value_name = "STEP", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    pub restart: Option<Vec<String>>,
    /// Of a sequence: run this step and all behind it, as if all others had nothing to do; with the dates and results
    /// of the last run
    #[arg(long, value_name = "STEP", conflicts_with = "resume", help_heading = "Sequence")]
    pub from: Option<String>,
    /// Of a sequence: run these steps alone. May be repeated
    #[arg(
        long, value_name = "STEP", value_delimiter = ',', conflicts_with_all = ["resume", "from"],
        help_heading = "Sequence"
    )]
    pub only: Vec<String>,
    /// Of a sequence: show what each step would do, and start nothing
    #[arg(long, help_heading = "Sequence")]
    pub dry_run: bool,
    /// What a sequence hands over to the process of a step
    #[arg(long, value_name = "FILE", hide = true)]
    pub as_step: Option<PathBuf>,
    /// Load files that have changed since they were loaded, in addition to the rows already loaded from them
    #[arg(long)]
    pub accept_changed: bool,
    /// Serve metrics for Prometheus while the run lasts, as `http://HOST:PORT/metrics`. Without a host only this
    /// machine can read them; port 0 takes a free one, which is printed
    #[arg(long, value_name = "[HOST:]PORT", env = "MILLSTREAM_METRICS")]
    pub metrics: Option<String>,
    #[command(flatten)]
    pub distributed: InCluster,
    /// Refuse variables that the file does not declare under `allow`.
    #[arg(long, hide = true)]
    pub only_allowed: bool,
    /// The planned time of a sequence that a scheduler starts, in milliseconds since 1970.
    #[arg(long, value_name = "MS", hide = true, conflicts_with_all = ["values", "restart"])]
    pub occurrence: Option<i64>,
    /// How many runs of a scheduler share the memory of the machine, which `--memory` then says.
    #[arg(long, value_name = "N", hide = true)]
    pub beside: Option<u64>,
}

/// What to explain.
#[derive(Debug, Args)]
pub struct Explain {
    #[command(flatten)]
    pub job: Job,
    #[command(flatten)]
    pub distributed: InCluster,
}

/// How a run uses the workers of a cluster.
#[derive(Debug, Args)]
pub struct InCluster {
    /// Let workers read that join with `millstream worker`. A job that cannot be distributed runs here alone, and says
    /// why; with `always` it fails
    #[arg(
        long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
        overrides_with = "cluster", help_heading = "Cluster"
    )]
    pub cluster: Option<WhenDistributed>,
    /// Where workers join [default: 0.0.0.0:7447]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Cluster")]
    pub listen: Option<String>,
    /// File with the secret of the cluster [default: cluster.pem in the state folder]
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_CLUSTER_SECRET", help_heading = "Cluster")]
    pub secret: Option<PathBuf>,
    /// Folder that all machines see under the same path. May be repeated
    #[arg(long, value_name = "FOLDER", help_heading = "Cluster")]
    pub shared: Vec<PathBuf>,
    /// How long to wait if there is no worker, before this machine reads what is left [default: 30s]
    #[arg(long = "wait-for-workers", value_name = "TIME", value_parser = time, help_heading = "Cluster")]
    pub wait: Option<Duration>,
}

/// When a run is distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WhenDistributed {
    /// If the job allows it
    Auto,
    /// In any case, or the run fails
    Always,
    /// Not at all
    Never,
}

/// For which runs to work, and when.
#[derive(Debug, Args)]
pub struct Worker {
    /// The machine that runs `millstream run --cluster`. The port is 7447, if none is named [default: `cluster: join:`
    /// of the machine file]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub join: Option<String>,
    /// File with the secret of the cluster [default: cluster.pem in the state folder]
    #[arg(long, value_name = "FILE", env = "MILLSTREAM_CLUSTER_SECRET")]
    pub secret: Option<PathBuf>,
    /// Hours in which to work, by the clock of this machine, such as `20:00-06:00`. When they end, what was begun is
    /// ended first
    #[arg(long, value_name = "FROM-TO")]
    pub hours: Option<Hours>,
    /// Work as long as other programs use fewer cores than this, such as `0.5`
    #[arg(long, value_name = "CORES")]
    pub max_load: Option<f64>,
    /// Work for one run, and exit when it has ended
    #[arg(long)]
    pub once: bool,
    /// Start workers on these machines instead, by `ssh` and without passwords: this program and the secret are copied
    /// there. They leave when this command ends
    #[arg(long, value_name = "HOST", num_args = 1..)]
    pub ssh: Vec<String>,
    /// Leave when standard input ends.
    #[arg(long, hide = true)]
    pub until_input_ends: bool,
}

/// What is done for a cluster as a whole.
#[derive(Debug, Args)]
pub struct Cluster {
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// What is done for a cluster as a whole.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make a secret. Who has it can join, and read and write what jobs read and write
    Init {
        /// Where [default: cluster.pem in the state folder]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// What to start when it is due.
#[derive(Debug, Args)]
pub struct Schedule {
    /// Folder with the sequences. Those in folders below count, too, but for hidden ones
    #[arg(value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,
    /// Show when each sequence starts next, and how it ended last
    #[arg(long, conflicts_with_all = ["once", "parallel"])]
    pub list: bool,
    /// How many times of each sequence the list shows
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, requires = "list")]
    pub times: usize,
    /// Run what is due, wait until it has ended, and exit: for cron
    #[arg(long)]
    pub once: bool,
    /// How many sequences run together [default: one on each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub parallel: Option<u16>,
}

/// What to serve, and where.
#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub struct Serve {
    /// Folder with the jobs and sequences. Those in folders below count, too, but for hidden ones. Relative paths in
    /// jobs begin where the server is started, as for `run`
    #[arg(value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,
    /// Where to listen. Without a host only this machine can connect; port 0 takes a free one [default: 127.0.0.1:8480]
    #[arg(long, value_name = "[HOST:]PORT", env = "MILLSTREAM_LISTEN")]
    pub listen: Option<String>,
    /// Name under which browsers ask for the server, such as that of a proxy in front of it. May be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// PEM file with the certificate for TLS, and those that sign it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Start no sequences by their schedules
    #[arg(long, conflicts_with = "parallel")]
    pub no_scheduler: bool,
    /// How many sequences run together that the scheduler starts [default: one on each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub parallel: Option<u16>,
}

/// Who may use the server.
#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub struct Access {
    #[command(subcommand)]
    pub command: AccessCommand,
}

/// What is to be changed of who may use the server.
#[cfg(feature = "serve")]
#[derive(Debug, Subcommand)]
pub enum AccessCommand {
    /// Print a link that signs one browser in, once, within an hour
    Link {
        /// What it allows
        #[arg(long, default_value = "edit")]
        role: Role,
    },
    /// Add a user, or give one another password and role. Asks for the password, or reads it from standard input
    AddUser {
        /// The name
        name: String,
        /// What the user may do
        #[arg(long, default_value = "look")]
        role: Role,
    },
    /// Add a token for a program, and print it: it is not stored, and cannot be shown again
    AddToken {
        /// What it is called
        name: String,
        /// What it allows
        #[arg(long, default_value = "look")]
        role: Role,
        /// How many days it works [default: until it is removed]
        #[arg(long, value_name = "N")]
        days: Option<u32>,
    },
    /// List users, tokens and sessions
    List,
    /// End sessions: those of a user, of all who came with a link, or a single one
    SignOut {
        /// A user, `link`, or what `access list` shows as the name of a session
        who: String,
    },
    /// Remove a user with all sessions, or a token
    Remove {
        /// The name
        name: String,
    },
}

/// What somebody may do at the server.
#[cfg(feature = "serve")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// See everything but secrets
    Look,
    /// Start, cancel, resume and replay, too, with the variables that jobs allow
    Operate,
    /// Write files, too, which is as much as a shell of the server's user
    Edit,
}

impl Run {
    /// Whether the job is to begin anew.
    pub fn restarts(&self) -> bool {
        self.restart.is_some()
    }

    /// The steps of a sequence that are to begin anew.
    pub fn restarted_steps(&self) -> &[String] {
        self.restart.as_deref().unwrap_or_default()
    }
}

/// Which runs to show.
#[derive(Debug, Args)]
pub struct Runs {
    /// The name of a run, or `last` [default: a list of all]
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Only runs of this job file
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Only runs that stopped early and were not resumed
    #[arg(long)]
    pub unfinished: bool,
    /// How many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    pub most: u64,
    /// Show the list again each second until Ctrl-C; where there is no terminal, a line for each change
    #[arg(long, conflicts_with = "run")]
    pub watch: bool,
}

/// Which report to show.
#[derive(Debug, Args)]
pub struct Report {
    /// The name of a run, as `millstream runs` shows it, or `last`
    #[arg(value_name = "RUN", default_value = "last")]
    pub run: String,
    /// Write it as one HTML file that needs nothing else, to FILE, or with `-` to standard output [default: RUN.html]
    #[arg(long, value_name = "FILE")]
    pub html: Option<Option<PathBuf>>,
    /// Show every step, including idle ones
    #[arg(long, short, conflicts_with = "html")]
    pub verbose: bool,
}

/// Whose rejects to show.
#[derive(Debug, Args)]
pub struct Rejects {
    /// The name of a run, as `millstream runs` shows it
    #[arg(value_name = "RUN", default_value = "last")]
    pub run: String,
    /// Load the rejects again with the job as it is now, into the tables that they have not reached. What fails again
    /// is kept
    #[arg(long)]
    pub replay: bool,
    /// Serve metrics while they are loaded again, as `run --metrics` does
    #[arg(long, value_name = "[HOST:]PORT", requires = "replay")]
    pub metrics: Option<String>,
    /// With `--json`: print the reasons with their counts and a few examples, in place of all rejects
    #[arg(long, conflicts_with = "replay")]
    pub by_reason: bool,
    /// Refuse variables that the job does not declare under `allow`.
    #[arg(long, hide = true)]
    pub only_allowed: bool,
    #[command(flatten)]
    pub variables: Variables,
}

/// Which runs to stop.
#[derive(Debug, Args)]
pub struct CancelRuns {
    /// The runs, by their names in `millstream runs`; `last` is the last one
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    /// Do not wait for their ends
    #[arg(long)]
    pub no_wait: bool,
}

/// What to forget.
#[derive(Debug, Args)]
pub struct Forget {
    /// The job file
    #[arg(value_name = "JOB")]
    pub path: String,
    /// Files, by their names as in `_uri`, or by patterns (`in/*.csv`) of the names of files that are there now
    #[arg(value_name = "FILE", required_unless_present = "to")]
    pub files: Vec<String>,
    /// Only of this source
    #[arg(long, value_name = "NAME")]
    pub source: Option<String>,
    /// Only by this sink
    #[arg(long, value_name = "NAME")]
    pub sink: Option<String>,
    /// All rows from this time on, of sources with `incremental: {by: …}`: the next run begins there
    #[arg(long, value_name = "TIME", conflicts_with = "files")]
    pub to: Option<String>,
    /// Show what would be forgotten, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub variables: Variables,
}

/// What to check.
#[derive(Debug, Args)]
pub struct Check {
    /// The job file
    #[arg(value_name = "JOB", required_unless_present = "schema")]
    pub path: Option<String>,
    /// Contact neither network nor database
    #[arg(long)]
    pub offline: bool,
    /// Read the file, and look at nothing else: for pages that draw its graph, whatever is wrong with it.
    #[arg(long, hide = true)]
    pub outline: bool,
    /// Refuse variables that the file does not declare under `allow`.
    #[arg(long, hide = true, requires = "outline")]
    pub only_allowed: bool,
    /// Print the JSON schema of job files, for editors
    #[arg(long, conflicts_with_all = ["path", "offline"])]
    pub schema: bool,
    #[command(flatten)]
    pub variables: Variables,
    #[command(flatten)]
    pub each: ForValues,
}

/// What to test.
#[derive(Debug, Args)]
pub struct Test {
    /// Test files (`load.test.yaml`), jobs with one beside them, or folders that have some [default: this folder]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Only tests that have this in their names
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Print the JSON schema of test files, for editors
    #[arg(long, conflicts_with_all = ["paths", "only"])]
    pub schema: bool,
}

/// What to show.
#[derive(Debug, Args)]
pub struct Preview {
    /// The job file
    #[arg(value_name = "JOB")]
    pub path: String,
    /// The source or transform [default: what the first sink reads]
    #[arg(value_name = "STEP")]
    pub step: Option<String>,
    /// How many rows
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
    pub rows: usize,
    /// With `--json`: print one object, with the columns and their types, and each row as a list of values
    #[arg(long)]
    pub with_columns: bool,
    #[command(flatten)]
    pub variables: Variables,
    #[command(flatten)]
    pub each: ForValues,
}

/// What to query.
#[derive(Debug, Args)]
pub struct Sql {
    /// One query. A path, a glob or a URL in quotes is a table: `SELECT … FROM 'data/*.csv.gz'`
    #[arg(value_name = "QUERY")]
    pub query: String,
    /// Form of the rows [default: a table on a terminal, else csv]
    #[arg(long, value_name = "FORMAT", value_parser = row_formats())]
    pub format: Option<String>,
    /// How many rows a table shows
    #[arg(long, short = 'n', value_name = "N", default_value_t = 40)]
    pub rows: usize,
}

/// The forms of the rows of a query.
fn row_formats() -> PossibleValuesParser {
    let formats = millstream::component::registry().formats;
    std::iter::once(TABLE).chain(formats.iter().map(|format| format.spec.name)).collect::<Vec<_>>().into()
}

/// What to guess from.
#[derive(Debug, Args)]
pub struct Guess {
    /// A path, a glob, a URL, or `@FILE` for a list of them
    #[arg(value_name = "URL")]
    pub url: String,
}

/// What to count.
#[derive(Debug, Args)]
pub struct Count {
    #[command(flatten)]
    pub urls: Urls,
    /// Print a line for each file: its lines, a tab, its name
    #[arg(long)]
    pub by_unit: bool,
    #[command(flatten)]
    pub distributed: InCluster,
}

/// What to read.
#[derive(Debug, Args)]
pub struct Urls {
    /// Paths, globs (`**` for any folders), URLs, `{000..999}`, `@FILE` for a list of them, `-` for standard input
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,
    /// Only members of archives that match this glob. May be repeated
    #[arg(long = "member", value_name = "GLOB")]
    pub members: Vec<String>,
}

/// A length of time, such as `30s`.
fn time(text: &str) -> Result<Duration, String> {
    Duration::try_from(text.to_owned())
}

/// `NAME=VALUE`.
fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_variable_has_a_name_and_may_hold_anything() {
        assert_eq!(variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(variable("A="), Ok(("A".to_owned(), String::new())));
        assert!(variable("=a").is_err() && variable("a").is_err());
    }
}
