//! Warns of incremental sources that are loaded once more, since the run has other values of `--set` than those before.

use std::sync::Arc;

use millstream_core::Result;
use millstream_core::sink::{LoadContext, WrittenChunks};
use millstream_job::{Lint, SinkStep, SourceStep};

use super::work::Work;
use crate::chunks::sinks::incremental_sources;
use crate::chunks::units::{Standing, Units, WhenChanged};
use crate::read::{Reader, sample};
use crate::resume::OtherValues;

impl Work<'_, '_> {
    /// Warns if `sink` gets files, or rows of a database, for the first time under these values of `--set`, but has
    /// got them under others. Where that cannot be found out, the load itself fails, or nothing is amiss.
    pub(super) async fn warn_of_other_values(&self, sink: &SinkStep, context: &LoadContext) -> Result<()> {
        let sources: Vec<&SourceStep> = incremental_sources(self.job, sink).collect();
        if sources.is_empty() {
            return Ok(());
        }
        let others = self.point.other_values(sink, context).await.unwrap_or_default();
        let mut warnings = Vec::new();
        for OtherValues { written, difference } in others {
            let written = Arc::new(written);
            for source in &sources {
                let is_it = |reader: &&Arc<Reader>| reader.name == source.name.value;
                let Some(reader) = self.prepared.readers.iter().find(is_it) else { continue };
                let what = match reader.incremental_by {
                    Some(_) => "rows",
                    None => "files",
                };
                if what == "rows" || has_some(reader, Arc::clone(&written)).await {
                    warnings.push(self.warning(source, sink, what, difference.as_deref()));
                }
            }
        }
        (self.warn)(&warnings);
        Ok(())
    }

    fn warning(&self, source: &SourceStep, sink: &SinkStep, what: &str, difference: Option<&str>) -> Lint {
        let difference = difference.map_or_else(String::new, |difference| format!(" ({difference})"));
        let (source_name, sink) = (&source.name.value, &sink.name.value);
        let what = format!(
            "`{sink}` has loaded {what} of `{source_name}` before with other `--set` values{difference}, and this run \
             loads them again"
        );
        self.job.text.warning(source.name.span, what).hint(
            "each set of `--set` values knows only what it has loaded itself; to load only what is new, give the same \
             values as before, or set the variable in the environment instead of with `--set`",
        )
    }
}

/// Whether any unit of `reader` is in a load of which this is `written`.
async fn has_some(reader: &Arc<Reader>, written: Arc<WrittenChunks>) -> bool {
    let units = Units::new(&reader.name, written, WhenChanged::default());
    let listed = sample::units(reader, usize::MAX).await.unwrap_or_default();
    listed.iter().any(|unit| !matches!(units.standing(unit), Standing::New(_)))
}
