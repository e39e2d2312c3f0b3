//! What the job file may say of a sort.

use millstream_core::spec::{Fault, Spec};
use millstream_core::transform::{EntryName, Expression, Keep, ScratchPool, SortTerm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::Keys;

/// Sorts the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SortSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// What to sort by, most important first: a column or SQL expression, then `asc` (the default) or `desc`, then
    /// `nulls first` or `nulls last` (nulls count as the largest value if nothing is said).
    pub by: Keys<SortTerm>,
    /// How many rows to keep; all if left out.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Whether of the rows that are equal in all of `by` only one stays: any of them, with `stable` the first that
    /// came.
    #[serde(default)]
    pub unique: bool,
    /// Keeps one row of those that are equal in some columns.
    #[serde(default)]
    #[schemars(with = "SortDedupe")]
    pub dedupe: Option<SortDedupe>,
    /// Whether rows with equal keys stay in the order in which they came: that of the files as they are listed, and of
    /// their lines. Then one task reads them.
    #[serde(default)]
    pub stable: bool,
    /// The pool of scratch disks that it uses, one of those in the machine file. On a machine without pools it uses
    /// what there is.
    #[serde(default)]
    #[schemars(with = "ScratchPool", length(min = 1))]
    pub pool: Option<ScratchPool>,
}

/// Keeps one row of those that are equal in some columns, while they are sorted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SortDedupe {
    /// The columns in which rows are equal. Where they are the first that are sorted by, it costs nothing; otherwise
    /// the rows are sorted twice.
    pub by: Keys<Expression>,
    /// Which of the equal rows stays, in the order of the sort; where that says nothing, in the order in which they
    /// came. If left out, the first in the order of the sort, or any of them.
    #[serde(default)]
    #[schemars(with = "Keep")]
    pub keep: Option<Keep>,
}

impl Spec for SortSpec {
    const NAME: &'static str = "sort";
    const SUMMARY: &'static str = "Sorts the rows.";
    const EXAMPLE: &'static str = "sort: {from: ranked, by: [country, people desc], limit: 1000}\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.by.fault("by").into_iter().collect();
        faults.extend(self.dedupe.iter().filter_map(|dedupe| dedupe.by.fault("dedupe.by")));
        if self.unique && self.dedupe.is_some() {
            let hint = "`unique` is for rows that are equal in all sort keys, `dedupe` for others: keep one of them";
            faults.push(Fault::of_key("unique", "`unique` and `dedupe` both say which rows are equal").hint(hint));
        }
        faults
    }
}
