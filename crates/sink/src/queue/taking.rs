//! How rows of another queue are taken: what all of their deliveries work with.

use std::time::Instant;

use millstream_core::Result;
use millstream_core::sink::LoadContext;
use millstream_database::on_io;

use super::message::{Form, Rows};
use super::outlet::{TASK, Terms};

/// How rows of another queue are taken.
#[derive(Clone)]
pub(super) struct Taking {
    pub(super) context: LoadContext,
    pub(super) form: Form,
    pub(super) terms: Terms,
}

impl Taking {
    pub(super) fn rows(&self) -> Rows {
        self.form.rows(&self.context.schema)
    }

    /// Does `work`, a part of a delivery, where the network is.
    pub(super) async fn waiting<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let start = Instant::now();
        let done = on_io(&self.terms.io, TASK, work).await;
        self.context.step.add_waiting_output(start.elapsed());
        done
    }
}
