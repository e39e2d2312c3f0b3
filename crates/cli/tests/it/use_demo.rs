//! The main job of the repository, against a reference computed here.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::use_support::{Lab, finish, gunzip, names, sqlite};

#[test]
fn the_places_and_the_people_of_each_country() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lab = Lab::new();
    let set = format!("OUT={}", lab.0.text("out"));
    let mut command = lab.command(&["run", "examples/geonames/job.yaml", "--json", "--set", &set]);
    command.current_dir(&root);
    let ran = finish(command, None);
    let report = ran.ok().json();

    let data = root.join("examples/geonames/data");
    let mut country_names = BTreeMap::new();
    for line in fs_err::read_to_string(data.join("countries.jsonl")).expect("countries").lines() {
        let country: Value = serde_json::from_str(line).expect("json");
        let text = |key: &str| country[key].as_str().expect("a text").to_owned();
        country_names.insert(text("iso"), text("name"));
    }
    let mut places = 0;
    let mut expected: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for name in names(&data.join("cities15000")) {
        let text = gunzip(&fs_err::read(data.join("cities15000").join(name)).expect("a part"));
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let sums = expected.entry(country_names[fields[5]].clone()).or_default();
            places += 1;
            sums.0 += 1;
            sums.1 += fields[7].parse::<i64>().expect("a number");
        }
    }
    assert_eq!(places, 34_006);
    let mut expected: Vec<(String, (i64, i64))> = expected.into_iter().collect();
    expected.sort_by(|a, b| b.1.1.cmp(&a.1.1).then_with(|| a.0.cmp(&b.0)));

    let found: Vec<(String, (i64, i64))> =
        sqlite(&lab.path("out/geonames.db"), "SELECT country, places, people FROM people_by_country ORDER BY rowid")
            .into_iter()
            .map(|row| (row[0].clone(), (row[1].parse().expect("a number"), row[2].parse().expect("a number"))))
            .collect();
    assert_eq!(found, expected, "every country, in the order of the ranking");
    assert_eq!(report["rows_read"], places + country_names.len());
    assert_eq!(report["rows_written"], expected.len());
}
