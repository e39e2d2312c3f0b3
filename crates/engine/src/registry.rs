//! The only place that names every component.

use millstream_core::Registry;

/// All components of this build.
pub fn registry() -> Registry {
    Registry::of(
        millstream_source::SOURCES,
        millstream_codec::CODECS,
        millstream_format::FORMATS,
        millstream_transform::TRANSFORMS,
        millstream_sink::SINKS,
        millstream_source::STORES,
    )
    .with_functions(&millstream_transform::FUNCTION)
    .with_optional(millstream_source::OPTIONAL, millstream_sink::OPTIONAL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millstream_core::registry::OptionalComponent;
    use millstream_core::spec::SpecInfo;

    use super::*;
    use crate::Engine;
    use crate::parse::Variables;

    /// Which section an example is for.
    #[derive(Debug, Clone, Copy)]
    enum Of {
        Sources,
        Transforms,
        Sinks,
    }

    #[test]
    fn optional_components_have_the_schemes_of_their_entries() {
        let optional = |list: &[OptionalComponent]| -> Vec<_> {
            list.iter().map(|one| (one.name, one.schemes.to_vec())).collect()
        };
        let sources = millstream_source::SOURCES.iter().map(|entry| (entry.spec.name, entry.schemes.to_vec()));
        let sources: BTreeMap<_, _> = sources.collect();
        for (name, schemes) in optional(millstream_source::OPTIONAL) {
            assert_eq!(sources.get(name), Some(&schemes), "source {name}");
        }
        let sinks = millstream_sink::SINKS.iter().map(|entry| (entry.spec.name, entry.schemes.to_vec()));
        let stores = millstream_source::STORES.iter().map(|entry| (entry.spec.name, entry.schemes.to_vec()));
        let sinks: BTreeMap<_, _> = sinks.chain(stores).collect();
        for (name, schemes) in optional(millstream_sink::OPTIONAL) {
            assert_eq!(sinks.get(name), Some(&schemes), "sink {name}");
        }
    }

    fn job_with(of: Of, example: &str) -> String {
        let body = example.lines().map(|line| format!("    {line}\n")).collect::<String>();
        match of {
            Of::Sources => {
                let is_queue = ["kafka://", "redis://"].iter().any(|scheme| body.contains(scheme));
                let until = if is_queue { "until: now\n" } else { "" };
                format!("{until}sources:\n  example:\n{body}sinks:\n  out:\n    from: example\n    write: out.csv\n")
            }
            Of::Transforms => format!(
                "sources: {{ranked: {{read: in.csv}}, others: {{read: others.csv}}}}\ntransforms:\n  \
                 example:\n{body}sinks:\n  out: {{from: example, write: out.csv}}\n  ranked: {{from: ranked, write: \
                 ranked.csv}}\n  others: {{from: others, write: all.csv}}\n"
            ),
            Of::Sinks => format!("sources:\n  ranked:\n    read: in.csv\nsinks:\n  example:\n{body}"),
        }
    }

    #[test]
    fn every_example_is_a_sound_entry() {
        let registry = registry();
        let sources = registry.sources.iter().map(|entry| (Of::Sources, entry.spec));
        // Those of formats that are mostly written are of sinks.
        let formats = registry.formats.iter().map(|entry| match entry.spec.example.starts_with("from: ") {
            true => (Of::Sinks, entry.spec),
            false => (Of::Sources, entry.spec),
        });
        let transforms = registry.transforms.iter().map(|entry| (Of::Transforms, entry.spec));
        let sinks = registry.sinks.iter().map(|entry| (Of::Sinks, entry.spec));
        let specs: Vec<(Of, SpecInfo)> = sources.chain(formats).chain(transforms).chain(sinks).collect();
        assert!(specs.len() >= 16);
        for (of, spec) in specs {
            let text = job_with(of, spec.example);
            let variables = Variables { set: &BTreeMap::new(), environment: &|_| Some("set".into()), now: 0 };
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
