//! The only place that names every component.

use millstream_core::Registry;

/// All components of this build.
pub fn registry() -> Registry {
    Registry::of(
        millstream_source::SOURCES,
        millstream_codec::CODECS,
        millstream_format::FORMATS,
        millstream_sink::SINKS,
        millstream_source::STORES,
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millstream_core::spec::SpecInfo;

    use super::*;
    use crate::Engine;
    use crate::parse::Variables;

    fn job_with(example: &str) -> String {
        let body = example.lines().map(|line| format!("    {line}\n")).collect::<String>();
        match example.contains("from: ranked") {
            true => format!("sources:\n  ranked:\n    read: in.csv\nsinks:\n  example:\n{body}"),
            false => {
                format!("sources:\n  example:\n{body}sinks:\n  out:\n    from: example\n    write: out.csv\n")
            }
        }
    }

    #[test]
    fn every_example_is_a_sound_entry() {
        let registry = registry();
        let specs = registry.sources.iter().map(|entry| entry.spec);
        let specs = specs.chain(registry.formats.iter().map(|entry| entry.spec));
        let specs: Vec<SpecInfo> = specs.chain(registry.sinks.iter().map(|entry| entry.spec)).collect();
        assert!(specs.len() >= 10);
        for spec in specs {
            let text = job_with(spec.example);
            let variables = Variables { set: &BTreeMap::new(), environment: &|_| Some("set".into()) };
            let engine = Engine::builder().build().expect("an engine");
            let loaded = engine.parse("job.yaml", &text, variables, true);
            assert!(loaded.lints.is_empty(), "{}:\n{text}\n{:#?}", spec.name, loaded.lints);
        }
    }

    #[test]
    fn no_two_components_claim_the_same_name() {
        let registry = registry();
        let targets = registry.sinks.iter().flat_map(|entry| registry.sink_schemes(entry));
        let mut targets: Vec<&str> = targets.collect();
        targets.sort_unstable();
        assert!(targets.windows(2).all(|pair| pair[0] != pair[1]), "{targets:?}");
        let mut names: Vec<&str> = registry.sources.iter().flat_map(|entry| entry.schemes).copied().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        let mut endings: Vec<&str> = registry.formats.iter().flat_map(|entry| entry.extensions).copied().collect();
        endings.extend(registry.codecs.iter().flat_map(|entry| entry.extensions));
        endings.sort_unstable();
        assert!(endings.windows(2).all(|pair| pair[0] != pair[1]), "{endings:?}");
    }
}
