//! The main job of the repository, against a reference computed here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

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

/// The report of an example, whose results are in the lab's folder `out`.
fn ran_example(lab: &Lab, job: &str) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let set = format!("OUT={}", lab.0.text("out"));
    let mut command = lab.command(&["run", job, "--json", "--set", &set]);
    command.current_dir(root);
    finish(command, None).ok().json()
}

/// The fields of all places.
fn places() -> Vec<Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/geonames/data/cities15000");
    let texts = names(&folder).into_iter().map(|name| gunzip(&fs_err::read(folder.join(name)).expect("a part")));
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn the_words_of_all_names() {
    let lab = Lab::new();
    ran_example(&lab, "examples/word-count/job.yaml");
    let mut counts: BTreeMap<String, (u64, BTreeSet<String>)> = BTreeMap::new();
    for place in places() {
        for word in place[1].to_lowercase().split_whitespace() {
            let (count, countries) = counts.entry(word.to_owned()).or_default();
            *count += 1;
            countries.insert(place[5].clone());
        }
    }
    let mut expected: Vec<_> = counts.into_iter().collect();
    expected.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let found: Vec<Value> =
        lab.read("out/words.jsonl").lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!(found.len(), 1000);
    for ((word, (count, countries)), found) in expected.into_iter().zip(found) {
        assert_eq!(found, json!({"word": word, "count": count, "countries": countries}));
    }
}

#[test]
fn records_are_repackaged() {
    let lab = Lab::new();
    let report = ran_example(&lab, "examples/repackage/job.yaml");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/geonames/data/countries.jsonl");
    let countries = fs_err::read_to_string(data).expect("countries");
    let countries: Vec<Value> = countries.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let wanted: Vec<&Value> = countries
        .iter()
        .filter(|country| country["population"].as_i64().expect("a number") > 0 && !country["capital"].is_null())
        .collect();
    assert_eq!(report["rows_written"], json!(wanted.len()));
    let rows =
        sqlite(&lab.path("out/countries.db"), "SELECT key, title, languages, document, continent FROM documents");
    let rows: BTreeMap<String, Vec<String>> = rows.into_iter().map(|row| (row[0].clone(), row)).collect();
    assert_eq!(rows.len(), wanted.len());
    for country in wanted {
        let text = |key: &str| country[key].as_str().expect("a text");
        let row = &rows[&text("iso").to_lowercase()];
        assert_eq!(row[1], format!("{} ({})", text("name"), text("capital")));
        assert_eq!(
            (row[2].as_str(), row[4].as_str()),
            (country["languages"].as_array().map_or(0, Vec::len).to_string().as_str(), text("continent"))
        );
        let document: Value = serde_json::from_str(&row[3]).expect("json");
        assert_eq!((&document["people"]["count"], &document["money"]), (&country["population"], &country["currency"]));
    }
}
