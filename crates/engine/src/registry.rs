//! The only place that names every component.

use millstream_core::Registry;

/// All components of this build.
pub fn registry() -> Registry {
    Registry {
        sources: millstream_source::SOURCES,
        codecs: millstream_codec::CODECS,
        formats: millstream_format::FORMATS,
        sinks: millstream_sink::SINKS,
    }
}
