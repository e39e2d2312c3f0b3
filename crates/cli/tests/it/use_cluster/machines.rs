//! Workers with an address, a disk, or an interpreter of their own: in namespaces, which need no rights.

use std::process::Command;

use super::files::cluster;
use super::{Cluster, cluster_of, counts, postgres, written};
use crate::harness::{MILLSTREAM, program};
use crate::use_support::{Ran, finish};

/// A function that takes some time for each row.
const SLOW: &str = "import time\n\ndef slow(row):\n    time.sleep(0.001)\n    return {'w': 1}\n";

impl Cluster {
    /// Runs a script in namespaces of its own, with `millstream` as `$0`.
    fn script(&self, script: &str) -> Ran {
        let mut command = program(self.lab.0.root(), "unshare");
        command.args(["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc"]);
        command.args(["--kill-child", "sh", "-euc", script, MILLSTREAM]);
        command.env("MILLSTREAM_STATE", self.lab.path(".state"));
        finish(self.in_beats(command), None)
    }

    /// Lets the rows pass a function, which `code` is.
    fn with_code(&self, file: &str, code: &str) {
        self.lab.file(file, code);
        let map = format!(
            "  coded: {{map: {{from: kept, python: '{file}:slow', columns: {{w: int64}}, keep: [id, name, v], \
             deterministic: true, workers: 1}}}}\nsinks:"
        );
        let job = self.lab.read("job.yaml").replace("sinks:", &map);
        self.lab.file("job.yaml", job.replace("from: kept, write", "from: coded, write"));
    }
}

/// Three machines at a bridge. The cable of one is pulled while it reads.
#[test]
fn a_machine_whose_cable_is_pulled_is_lost_and_the_others_read_what_it_had() {
    let cluster = cluster("write: 'out/a.jsonl.gz', roll: {bytes: 4kB}", 24, ", max_rejects: 100");
    cluster.with_code("slow.py", SLOW);
    let machines = "ip link set lo up
ip link add br0 type bridge
ip addr add 10.77.0.1/24 dev br0
ip link set br0 up
for n in 1 2 3; do
    export n
    unshare --net sh -euc 'echo $$ > pid-$n; until [ -e plugged-$n ]; do sleep 0.02; done
        ip link set lo up; ip addr add 10.77.0.1$n/24 dev eth0; ip link set eth0 up
        exec \"$0\" worker --join 10.77.0.1:7447 --cores 1 --memory 256MiB --state .state-$n' \"$0\" 2> worker-$n.log &
    until [ -s pid-$n ]; do sleep 0.02; done
    ip link add v$n type veth peer name eth0 netns $(cat pid-$n)
    ip link set v$n master br0 up
    touch plugged-$n
done
\"$0\" run job.yaml --json --cluster=always --shared in --shared out --listen 0.0.0.0:7447 2> coordinator.log &
run=$!
until [ $(grep -c 'has joined' coordinator.log) = 3 ]; do sleep 0.02; done
sleep 0.5
ip link set v2 down
wait $run";
    let ran = cluster.script(machines);
    let report = ran.ok().json();
    cluster.has_all_in_files(24, true);
    assert_eq!(counts(&report)[1..], [written(24), 24], "{report:#}");
    let lost: Vec<&str> = cluster_of(&report).iter().filter_map(|worker| worker["lost"].as_str()).collect();
    let log = cluster.lab.read("coordinator.log");
    assert!(matches!(lost.as_slice(), [why] if why.contains("it was silent for ")), "{lost:?}: {log}");
    let host = Command::new("hostname").output().expect("it runs").stdout;
    let host = String::from_utf8_lossy(&host).trim().to_owned();
    assert!(log.contains(&format!("millstream worker --join {host}:7447")), "{log}");
}

#[test]
fn a_full_disk_ends_a_run_that_writes_files_and_leaves_nothing() {
    let cluster = cluster("write: 'out/a.jsonl', compress: none, roll: {bytes: 4kB}", 24, "");
    let full = "ip link set lo up
mount -t tmpfs -o size=64k none out
for n in 1 2; do
    \"$0\" worker --join 127.0.0.1:7447 --cores 1 --memory 256MiB --state .state-$n 2> worker-$n.log &
done
\"$0\" run job.yaml --cluster=always --shared in --shared out --listen 127.0.0.1:7447 || echo ended with $?
ls -A out";
    let ran = cluster.script(full);
    ran.ok().says(&["no space left on device", "out/a-", "on the worker "]);
    assert_eq!(ran.stdout, "ended with 1\n", "{}", ran.stderr);
}

#[test]
fn a_worker_without_room_for_the_code_cannot_join_and_says_why() {
    let mut cluster = Cluster::new(postgres(), 4, "");
    cluster.with_code("code/slow.py", &format!("{SLOW}# {}\n", "x".repeat(100_000)));
    fs_err::create_dir(cluster.lab.path("scratch")).expect("made");
    // The code is not there yet.
    let full = "mount -t tmpfs none code
mount -t tmpfs -o size=32k none scratch
exec \"$0\" worker --join ADDRESS --cores 1 --memory 256MiB --scratch scratch --state .state-1";
    let full = full.replace("ADDRESS", &cluster.address);
    let mut worker = program(cluster.lab.0.root(), "unshare");
    worker.args(["--user", "--map-root-user", "--mount", "sh", "-euc", &full, MILLSTREAM]);
    let _full = cluster.start(worker);
    let ran = finish(cluster.coordinator(&["--wait-for-workers", "3s"]), None);
    ran.ok().says(&["cannot join", "no space left on device", "this machine reads what is left"]);
    cluster.has_all(4, false);
}

#[test]
fn a_worker_with_another_interpreter_cannot_join_and_says_why() {
    let mut cluster = Cluster::new(postgres(), 4, "");
    cluster.with_code("slow.py", SLOW);
    cluster.lab.file("other/sitecustomize.py", "import sys\nsys.version = '3.1.4 (another)'\n");
    let other = cluster.lab.path("other").display().to_string();
    let _other = cluster.worker_with(("PYTHONPATH", &other));
    let ran = finish(cluster.coordinator(&["--wait-for-workers", "3s"]), None);
    ran.ok().says(&[
        "cannot join",
        "Python 3.1 runs the code of `coded` here, and Python 3.",
        "let all machines have the same version",
        "this machine reads what is left",
    ]);
    cluster.has_all(4, false);
}
