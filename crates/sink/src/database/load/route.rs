//! The route of a load into the target: a pure decision, made once.

use millstream_database::load::Publish;
use millstream_database::table::TableFacts;

use super::staged::Moved;
use crate::database::spec::{DatabaseSpec, Mode};

/// How many connections load by default, if rows do not go straight into the target.
const CONNECTIONS: usize = 2;

/// How rows get into the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// One transaction, straight into the target.
    Direct,
    /// Into a new table that replaces the target.
    New,
    /// Into a staging table, and from there into the target, or into a new table if there is none.
    Staged(Moved),
}

/// The route of a load; `facts` are those of the target, if it exists. If rows `may_refuse`, they go straight to the
/// target where possible, since it reports the rows that it refuses.
pub(super) fn route(
    spec: &DatabaseSpec,
    connections: usize,
    facts: Option<&TableFacts>,
    can_copy: bool,
    may_refuse: bool,
) -> Route {
    match (spec.mode, facts) {
        (Mode::Merge, _) => Route::Staged(Moved::By(Publish::Merge)),
        (Mode::Sync | Mode::History, _) => Route::Staged(Moved::InStep),
        (Mode::Ignore, _) => Route::Staged(Moved::By(Publish::Ignore)),
        (_, None) | (Mode::Replace, _) => Route::New,
        (Mode::Truncate, Some(_)) if can_copy => Route::New,
        (Mode::Truncate, Some(_)) if may_refuse => Route::Direct,
        (Mode::Truncate, Some(_)) => Route::Staged(Moved::By(Publish::Instead)),
        (Mode::Append, Some(_)) if connections == 1 || may_refuse => Route::Direct,
        (Mode::Append, Some(_)) => Route::Staged(Moved::By(Publish::Add)),
    }
}

/// How many connections load. A requested order needs a single one.
pub(super) fn connections(spec: &DatabaseSpec, exists: bool, ordered: bool) -> usize {
    let few = spec.mode == Mode::Append && exists;
    if ordered { 1 } else { spec.connections.unwrap_or(if few { 1 } else { CONNECTIONS }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_load_has_its_route() {
        let facts = TableFacts::default();
        let (there, none) = (Some(&facts), None);
        // The mode, the target, connections, whether the target can be copied, whether rows may be refused.
        for (mode, target, connections, can_copy, may_refuse, expected) in [
            ("append", none, 1, false, true, Route::New),
            ("append", there, 1, true, false, Route::Direct),
            ("append", there, 4, true, true, Route::Direct),
            ("append", there, 4, true, false, Route::Staged(Moved::By(Publish::Add))),
            ("replace", none, 2, false, false, Route::New),
            ("replace", there, 2, false, true, Route::New),
            ("truncate", none, 2, false, true, Route::New),
            ("truncate", there, 2, true, true, Route::New),
            ("truncate", there, 2, false, true, Route::Direct),
            ("truncate", there, 2, false, false, Route::Staged(Moved::By(Publish::Instead))),
            ("merge", none, 1, true, true, Route::Staged(Moved::By(Publish::Merge))),
            ("merge", there, 1, true, false, Route::Staged(Moved::By(Publish::Merge))),
            ("sync", none, 2, false, true, Route::Staged(Moved::InStep)),
            ("history", there, 2, true, false, Route::Staged(Moved::InStep)),
            ("ignore", there, 1, true, true, Route::Staged(Moved::By(Publish::Ignore))),
        ] {
            let spec: DatabaseSpec = serde_json::from_value(json!({"table": "t", "mode": mode})).expect("a spec");
            let found = route(&spec, connections, target, can_copy, may_refuse);
            assert_eq!(found, expected, "{mode}, {}, {connections}, {can_copy}, {may_refuse}", target.is_some());
        }
    }

    #[test]
    fn an_order_is_kept_by_one_connection() {
        let spec = |settings| serde_json::from_value::<DatabaseSpec>(settings).expect("a spec");
        let append = spec(json!({"table": "t"}));
        assert_eq!((connections(&append, true, false), connections(&append, false, false)), (1, 2));
        let many = spec(json!({"table": "t", "mode": "replace", "connections": 8}));
        assert_eq!((connections(&many, true, false), connections(&many, true, true)), (8, 1));
    }
}
