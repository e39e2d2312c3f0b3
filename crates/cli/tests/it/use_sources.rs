//! Sources through the real binary: patterns, pipes, the web, archives, codecs, limits.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use millstream_testkit::{FaultServer, Nginx, Object, Plan};

use crate::use_support::{Lab, csv_rows, finish, gzip, sorted, step, tar_of, zip_of};

/// Rows `start..end` as csv with a header.
fn rows(range: std::ops::Range<u32>) -> String {
    range.fold("id,name\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},name {id}");
        text
    })
}

fn bzip2(text: &[u8]) -> Vec<u8> {
    pipe("bzip2", text)
}

fn xz(text: &[u8]) -> Vec<u8> {
    pipe("xz", text)
}

/// The output of another program for `text`.
fn pipe(program: &str, text: &[u8]) -> Vec<u8> {
    let mut child = std::process::Command::new(program)
        .arg("-c")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} is needed by the tests: {error}"));
    child.stdin.take().expect("a pipe").write_all(text).expect("a small text");
    child.wait_with_output().expect("it ends").stdout
}

#[test]
fn patterns_of_all_kinds_find_their_files_and_no_others() {
    let lab = Lab::with_job(
        "sources:\n  s:\n    read: ['tree/**/*.{csv,csv.gz}', 'n/{000..002}.csv', '@lists/more.txt', single.csv]\n    \
         csv: {}\n    add: [_uri, _line]\nsinks:\n  o: {from: s, write: out.csv}\n",
    );
    lab.file("tree/a.csv", rows(0..2));
    lab.file("tree/deep/er/b.csv.gz", gzip(rows(2..4).as_bytes()));
    lab.file("tree/deep/er/no.txt", "nothing\n");
    for number in 0..5 {
        lab.file(&format!("n/{number:03}.csv"), rows(10 * (number + 1)..10 * (number + 1) + 1));
    }
    lab.file("lists/more.txt", "# a list\n\nlisted/[ab].csv\n");
    lab.file("lists/listed/a.csv", rows(100..101));
    lab.file("lists/listed/c.csv", rows(200..201));
    lab.file("single.csv", rows(300..301));
    lab.run(&["run", "job.yaml"]).ok();
    let found = sorted(csv_rows(&lab.read("out.csv")));
    let expected = [
        (0, "tree/a.csv", 2),
        (1, "tree/a.csv", 3),
        (2, "tree/deep/er/b.csv.gz", 2),
        (3, "tree/deep/er/b.csv.gz", 3),
        (10, "n/000.csv", 2),
        (20, "n/001.csv", 2),
        (30, "n/002.csv", 2),
        (100, "lists/listed/a.csv", 2),
        (300, "single.csv", 2),
    ]
    .map(|(id, uri, line)| vec![id.to_string(), format!("name {id}"), uri.to_owned(), line.to_string()]);
    assert_eq!(found, sorted(expected.to_vec()));
}

#[test]
fn nothing_is_lost_of_a_pipe_whose_columns_were_guessed() {
    // More than what is looked at for the types.
    let text = rows(0..200_000);
    assert!(text.len() > 2 << 20);
    let job = "sources:\n  s: {read: '-', csv: {}}\ntransforms:\n  n: {sql: 'select count(*) AS n, sum(id) AS ids, \
               count(distinct name) AS names from s'}\nsinks:\n  o: {from: n, write: out.csv}\n";
    for input in [text.clone().into_bytes(), gzip(text.as_bytes())] {
        let lab = Lab::with_job(job);
        lab.run_with_input(&["run", "job.yaml"], &input).ok();
        assert_eq!(csv_rows(&lab.read("out.csv")), [["200000", "19999900000", "200000"]]);
    }
    let lab = Lab::new();
    assert_eq!(lab.run_with_input(&["count", "-"], text.as_bytes()).ok().stdout, "200001\n");
    assert!(lab.run_with_input(&["cat", "-"], &gzip(text.as_bytes())).ok().stdout == text);
}

#[test]
fn many_files_of_a_server_come_over_a_few_connections_that_are_kept() {
    let lab = Lab::new();
    for number in 0..60 {
        lab.file(&format!("served/{number:02}.csv.gz"), gzip(rows(number * 100..number * 100 + 100).as_bytes()));
    }
    let nginx = Nginx::start(&lab.path("served"));
    let url = nginx.url("{00..59}.csv.gz");
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  s: {{read: '{url}', http: {{connections: 4}}, csv: {{columns: {{id: int64, name: utf8}}}}, \
             add: [_uri]}}\ntransforms:\n  n: {{sql: 'select count(*) n, sum(id) ids, count(distinct _uri) units from \
             s'}}\n\
             sinks:\n  o: {{from: n, write: out.csv}}\n"
        ),
    );
    let report = lab.report(&[]);
    assert_eq!(csv_rows(&lab.read("out.csv")), [["6000", "17997000", "60"]]);
    assert_eq!(step(&report, "s", "fetch")["units"], 60);
    // Four at once; one that has just been used may be on its way back when the next object is asked for.
    let connections = nginx.accepted();
    assert!((2..=8).contains(&connections), "{connections} connections for 60 files");
}

#[test]
fn a_server_that_asks_who_is_there_gets_a_secret_that_nobody_else_sees() {
    const PASSWORD: &str = "hunter2-of-the-tests";
    let lab = Lab::new();
    lab.file("served/basic/a.csv", rows(0..3));
    lab.file("served/bearer/a.csv", rows(3..5));
    // nginx takes passwords in plain text under this mark.
    let users = lab.file("users", format!("anna:{{PLAIN}}{PASSWORD}\n"));
    let nginx = Nginx::start_with(
        &lab.path("served"),
        &format!(
            "location /basic/ {{ auth_basic closed; auth_basic_user_file {}; }}\nlocation /bearer/ {{ if \
             ($http_authorization != \"Bearer {PASSWORD}\") {{ return 401; }} }}",
            users.display()
        ),
    );
    lab.file("password", format!("{PASSWORD}\n"));
    let job = |secret: &str| {
        format!(
            "sources:\n  b: {{read: '{}', http: {{auth: {{basic: {{user: anna, password: {{secret: \
             '{secret}'}}}}}}}}}}\n  \
             t: {{read: '{}', http: {{auth: {{bearer: {{token: {{secret: 'file:password'}}}}}}}}}}\n\
             transforms:\n  u: {{union: [b, t]}}\nsinks:\n  o: {{from: u, write: '-', csv: {{}}}}\n",
            nginx.url("basic/a.csv"),
            nginx.url("bearer/a.csv")
        )
    };
    lab.file("job.yaml", job("env:MILLSTREAM_TEST_PASSWORD"));
    let with_secret = |arguments: &[&str], secret: &str| {
        let mut command = lab.command(arguments);
        command.env("MILLSTREAM_TEST_PASSWORD", secret);
        finish(command, None)
    };
    let ran = with_secret(&["run", "job.yaml"], PASSWORD);
    let ids = sorted(csv_rows(&ran.ok().stdout).into_iter().map(|row| row[0].clone()).collect());
    assert_eq!(ids, ["0", "1", "2", "3", "4"]);
    let mut outputs = vec![ran];
    for arguments in [
        ["check", "job.yaml"].as_slice(),
        &["check", "--offline", "job.yaml"],
        &["explain", "job.yaml"],
        &["preview", "job.yaml", "b"],
        &["run", "job.yaml", "--verbose"],
    ] {
        let ran = with_secret(arguments, PASSWORD);
        ran.ok();
        outputs.push(ran);
    }
    // A wrong password is refused, and shown no more than the right one.
    let refused = with_secret(&["run", "job.yaml"], "wrong-hunter2-of-the-tests");
    refused.ended(1).says(&["401"]);
    outputs.push(refused);
    for ran in &outputs {
        assert!(!ran.stdout.contains("hunter2") && !ran.stderr.contains("hunter2"), "{ran:?}");
    }
    // A missing secret is reported when the job runs, by its reference.
    lab.file("job.yaml", job("env:MILLSTREAM_TEST_NO_SUCH"));
    lab.run(&["run", "job.yaml"]).ended(2).says(&["MILLSTREAM_TEST_NO_SUCH"]);
}

#[test]
fn nothing_to_read_is_an_error_unless_the_job_allows_it() {
    let lab = Lab::with_job(
        "sources:\n  s: {read: 'none/*.csv', allow_empty: true, csv: {columns: {id: int64}}}\n\
         sinks:\n  o: {from: s, write: out.csv}\n",
    );
    assert_eq!(lab.report(&[])["rows_read"], 0);
    assert_eq!(lab.read("out.csv"), "id\n");
    lab.file("job.yaml", lab.read("job.yaml").replace(", allow_empty: true", ""));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["no file matches", "none/*.csv", "allow_empty"]);
    assert_eq!(lab.read("out.csv"), "id\n", "the result of before stays");
}

#[test]
fn each_of_several_patterns_must_find_something() {
    let job = |read: &str, more: &str| {
        format!("sources:\n  s: {{read: {read}, csv: {{}}{more}}}\nsinks:\n  o: {{from: s, write: '-', csv: {{}}}}\n")
    };
    let lab = Lab::new();
    lab.file("in/a.csv", rows(0..2));
    lab.file("list", "in/*.csv\nin/*.cvs\n");
    for read in ["['in/*.csv', 'in/*.cvs']", "'@list'"] {
        lab.file("job.yaml", job(read, ""));
        lab.run(&["run", "job.yaml"]).ended(1).says(&["no file matches", "in/*.cvs"]);
        lab.file("job.yaml", job(read, ", allow_empty: true"));
        assert_eq!(lab.run(&["run", "job.yaml", "-q"]).ok().stdout, rows(0..2));
    }
}

#[test]
fn every_codec_is_known_by_its_bytes() {
    let text = rows(0..500);
    let half = text.len() / 2;
    let two_members = [gzip(&text.as_bytes()[..half]), gzip(&text.as_bytes()[half..])].concat();
    let frame = |part: &str| zstd::encode_all(part.as_bytes(), 1).expect("memory");
    let two_frames = [frame(&text[..half]), frame(&text[half..])].concat();
    let frame_of = |bytes: &[u8]| zstd::encode_all(bytes, 1).expect("memory");
    let nested = zip_of(&[("in/a.csv.gz", &gzip(text.as_bytes()))]);
    for (name, bytes) in [
        ("plain.csv", text.clone().into_bytes()),
        ("members.csv.gz", two_members.clone()),
        ("frames.csv.zst", two_frames.clone()),
        ("a.csv.bz2", bzip2(text.as_bytes())),
        ("a.csv.xz", xz(text.as_bytes())),
        ("a.zip", zip_of(&[("in/a.csv", text.as_bytes())])),
        ("nested.zip", nested),
        ("a.tar", tar_of(&[("./in/a.csv", text.as_bytes())])),
        ("a.tgz", gzip(&tar_of(&[("in/a.csv", text.as_bytes())]))),
        ("a.tar.zst", frame_of(&tar_of(&[("in/a.csv.gz", &gzip(text.as_bytes()))]))),
        ("tar-without-a-name", tar_of(&[("in/a.csv", text.as_bytes())])),
        ("gzip-without-a-name", two_members),
        ("zstd-with-a-wrong-name.csv", two_frames),
    ] {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: {name}, csv: {{}}}}\nsinks:\n  o: {{from: s, write: '-', csv: {{}}}}\n"
        ));
        lab.file(name, bytes);
        assert_eq!(lab.run(&["run", "job.yaml", "-q"]).ok().stdout, text, "{name}");
        assert_eq!(lab.run(&["cat", name]).ok().stdout, text, "{name}");
        assert_eq!(lab.run(&["count", name]).ok().stdout, "501\n", "{name}");
    }
}

#[test]
fn members_are_chosen_by_globs_and_named_in_the_rows() {
    let lab = Lab::with_job(
        "sources:\n  z: {read: a.zip, members: ['in/**'], csv: {}, add: [_uri, _member, _line]}\n\
         sinks:\n  o: {from: z, write: out.csv}\n",
    );
    lab.file(
        "a.zip",
        zip_of(&[
            ("readme.txt", b"not a table"),
            ("in/a.csv", rows(0..2).as_bytes()),
            ("in/deep/b.csv.gz", &gzip(rows(5..6).as_bytes())),
        ]),
    );
    lab.run(&["run", "job.yaml"]).ok();
    let expected = [["0", "in/a.csv", "2"], ["1", "in/a.csv", "3"], ["5", "in/deep/b.csv.gz", "2"]]
        .map(|[id, member, line]| [id, &format!("name {id}"), "a.zip", member, line].map(str::to_owned).to_vec());
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), expected);
    assert_eq!(lab.run(&["cat", "a.zip", "--member", "in/a*"]).ok().stdout, rows(0..2));
}

#[test]
fn a_tar_may_hold_links_and_absolute_paths() {
    let lab = Lab::with_job(
        "sources:\n  t: {read: a.tar.gz, csv: {}, add: [_member]}\nsinks:\n  o: {from: t, write: out.csv}\n",
    );
    let (first, second) = (rows(0..1), rows(1..2));
    let members: [(&str, &[u8]); 4] = [
        ("/etc/a.csv", first.as_bytes()),
        ("link.csv", b"-> /etc/passwd"),
        ("../../b.csv", second.as_bytes()),
        ("._b.csv", b"what macOS adds"),
    ];
    let archive = tar_of(&members);
    lab.file("a.tar.gz", gzip(&archive));
    lab.run(&["run", "job.yaml"]).ok();
    let expected = [["0", "/etc/a.csv"], ["1", "../../b.csv"]]
        .map(|[id, member]| [id, &format!("name {id}"), member].map(str::to_owned).to_vec());
    assert_eq!(sorted(csv_rows(&lab.read("out.csv"))), expected);
    // Cut between two members, it is no short archive.
    lab.file("a.tar.gz", gzip(&archive[..1024]));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["tar is truncated", "a.tar.gz"]);
}

#[test]
fn limits_end_a_run_before_its_disk_is_full() {
    for (limits, message) in [("bytes: 1kB", "more than 1000 bytes"), ("members: 2", "members")] {
        let lab = Lab::with_job(&format!(
            "sources:\n  s: {{read: a.zip, limits: {{{limits}}}, lines: {{}}}}\n\
             sinks:\n  o: {{from: s, write: out.txt, lines: {{}}}}\n"
        ));
        let text = rows(0..100);
        lab.file("a.zip", zip_of(&[("a", text.as_bytes()), ("b", b"b\n"), ("c", b"c\n")]));
        lab.run(&["run", "job.yaml"]).ended(1).says(&[message, "a.zip"]);
        assert!(!lab.path("out.txt").exists());
    }
}

#[test]
fn a_server_that_is_far_away_gets_more_connections_and_keeps_no_other_waiting() {
    let objects = |count: u32, delay: Duration| {
        let object = |number: u32| Object::new(format!("{number}\n")).delayed(delay);
        (0..count).fold(Plan::new(), |plan, number| plan.object(&format!("/{number}"), object(number)))
    };
    let far = FaultServer::start(objects(100, Duration::from_millis(300)));
    let near = FaultServer::start(objects(200, Duration::ZERO));
    let lab = Lab::new();
    let listed = (0..200).fold(String::new(), |mut list, number| {
        if number % 2 == 0 {
            let _ = writeln!(list, "{}", far.url(&format!("/{}", number / 2)));
        }
        let _ = writeln!(list, "{}", near.url(&format!("/{number}")));
        list
    });
    lab.file("list.txt", listed);

    let counted = lab.run(&["count", "@list.txt"]);
    assert_eq!(counted.ok().stdout, "300\n");
    assert!(far.connections() > 8, "{} connections", far.connections());
    let (far, near) = (far.requests(), near.requests());
    let last = near.iter().map(|request| request.at).max().expect("requests");
    let behind = far.iter().filter(|request| request.at > last).count();
    assert!(behind >= 10, "{behind} of {} requests to the far server came behind the last to the near one", far.len());
}
