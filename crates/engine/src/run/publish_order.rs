//! The order in which loads publish their rows: those into tables that refer to each other by foreign keys one after
//! the other, the table to which others refer first. It is a pure decision; `commit.rs` acts by it.
//!
//! Two transactions that are open at once would wait for each other: rows of `orders` are only accepted once the
//! transaction that has changed the row of `customers` to which they refer has ended.

use millstream_core::sink::TableLinks;

/// Loads by their numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PublishOrder {
    /// Loads into tables that refer to each other, in the order in which each has to be committed before the next one
    /// is prepared.
    pub(super) chains: Vec<Vec<usize>>,
    /// All others.
    pub(super) alone: Vec<usize>,
    /// Those of the chains that delete missing rows before anything is published, since they refer to rows that another
    /// load may delete. The table to which others refer comes last.
    pub(super) deleting: Vec<usize>,
    /// All that may delete rows of these chains.
    pub(super) checked: Vec<usize>,
    /// Loads that may delete rows, each with the tables of other loads that refer to its own.
    pub(super) referred: Vec<(usize, Vec<String>)>,
}

impl PublishOrder {
    /// The order of loads into tables with these `links`.
    pub(super) fn of(links: &[Option<TableLinks>]) -> Self {
        let mut order = PublishOrder::default();
        let mut left: Vec<usize> = (0..links.len()).collect();
        while let Some(first) = left.first() {
            let chain = linked(*first, links);
            left.retain(|load| !chain.contains(load));
            match chain.len() {
                1 => order.alone.extend(chain),
                _ => order.add_chain(chain, links),
            }
        }
        order
    }

    fn add_chain(&mut self, chain: Vec<usize>, links: &[Option<TableLinks>]) {
        let deletes = |load: &usize| links[*load].as_ref().is_some_and(|links| links.deletes);
        // Whatever locks loads hold: rows are deleted before those to which they refer.
        let deleting = by_references(chain.iter().copied().filter(deletes).collect(), links);
        for &load in &deleting {
            let referring = chain.iter().filter(|other| **other != load && refers(&links[**other], &links[load]));
            let tables: Vec<String> =
                referring.filter_map(|other| links[*other].as_ref()).map(|links| links.table.clone()).collect();
            if !tables.is_empty() {
                self.referred.push((load, tables));
            }
        }
        // The first one refers to none that deletes: it is published whole.
        if deleting.len() > 1 {
            self.deleting.extend(deleting.iter().skip(1).rev());
            self.checked.extend(deleting);
        }
        self.chains.push(sorted(chain, links));
    }

    /// The loads that are prepared before anything is committed: not the first of a chain before whose publishing
    /// others delete rows.
    pub(super) fn prepared_first(&self) -> impl Iterator<Item = usize> {
        let waits = |chain: &&Vec<usize>| chain.iter().any(|load| self.checked.contains(load));
        let firsts = self.chains.iter().filter(move |chain| !waits(chain)).filter_map(|chain| chain.first());
        self.alone.iter().chain(firsts).copied()
    }

    /// All loads in the order in which they are committed: those whose preparation may still fail come first. With
    /// each, whether it is prepared only then.
    pub(super) fn published(&self) -> Vec<(usize, bool)> {
        let prepared: Vec<usize> = self.prepared_first().collect();
        let all = self.chains.iter().flatten().chain(&self.alone).copied();
        all.map(|load| (load, !prepared.contains(&load))).collect()
    }
}

/// Whether the table of `child` refers to that of `parent`.
fn refers(child: &Option<TableLinks>, parent: &Option<TableLinks>) -> bool {
    let (Some(child), Some(parent)) = (child, parent) else { return false };
    child.refers_to.contains(&parent.table)
}

/// The loads that are linked to `first`, directly or not, and itself.
fn linked(first: usize, links: &[Option<TableLinks>]) -> Vec<usize> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(&load) = found.get(next) {
        let is_linked = |other: &usize| refers(&links[load], &links[*other]) || refers(&links[*other], &links[load]);
        let more: Vec<usize> = (0..links.len()).filter(|other| !found.contains(other) && is_linked(other)).collect();
        found.extend(more);
        next += 1;
    }
    found.sort_unstable();
    found
}

/// `chain` with those first that hold locks already, then the others by their references.
fn sorted(chain: Vec<usize>, links: &[Option<TableLinks>]) -> Vec<usize> {
    let is_locked = |load: &usize| links[*load].as_ref().is_some_and(|links| links.is_locked);
    let (locked, others): (Vec<usize>, Vec<usize>) = chain.into_iter().partition(is_locked);
    [locked, by_references(others, links)].concat()
}

/// `left` with the tables to which others refer before these. In a circle the order of the job decides.
fn by_references(mut left: Vec<usize>, links: &[Option<TableLinks>]) -> Vec<usize> {
    let mut sorted = Vec::new();
    while !left.is_empty() {
        let is_free = |load: &usize| !left.iter().any(|other| other != load && refers(&links[*load], &links[*other]));
        let next = left.iter().position(is_free).unwrap_or(0);
        sorted.push(left.remove(next));
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `orders>customers` is a table that refers to another one; `!` says that it is locked, `-` that its load deletes.
    fn links(tables: &[&str]) -> Vec<Option<TableLinks>> {
        let link = |text: &&str| {
            let names = text.trim_end_matches(['!', '-']);
            let (table, refers_to) = names.split_once('>').unwrap_or((names, ""));
            let refers_to = refers_to.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            let (is_locked, deletes) = (text.contains('!'), text.contains('-'));
            (!table.is_empty()).then(|| TableLinks { table: table.to_owned(), refers_to, is_locked, deletes })
        };
        tables.iter().map(link).collect()
    }

    #[test]
    fn a_table_publishes_before_those_that_refer_to_it() {
        for (tables, chains, alone) in [
            (&["a", "b", ""][..], vec![], vec![0, 1, 2]),
            (&["orders>customers", "x", "customers"], vec![vec![2, 0]], vec![1]),
            (&["lines>orders,goods", "orders>customers", "customers", "goods"], vec![vec![2, 1, 3, 0]], vec![]),
            (&["a>b", "c>d", "b", "d"], vec![vec![2, 0], vec![3, 1]], vec![]),
            // What is linked only over a table that the job does not load needs no order.
            (&["a>x", "x2", "b>x"], vec![], vec![0, 1, 2]),
            (&["a>b", "b>a"], vec![vec![0, 1]], vec![]),
            (&["customers", "orders>customers!"], vec![vec![1, 0]], vec![]),
        ] {
            let order = PublishOrder::of(&links(tables));
            assert_eq!(order, PublishOrder { chains, alone, ..PublishOrder::default() }, "{tables:?}");
        }
    }

    #[test]
    fn a_table_that_refers_to_others_deletes_first() {
        for (tables, deleting, prepared) in [
            (&["orders>customers-", "customers-", "x-"][..], vec![0], vec![2]),
            (&["orders>customers-", "customers", "x"], vec![], vec![2, 1]),
            (&["orders>customers", "customers-"], vec![], vec![1]),
            (&["customers-", "orders>customers-", "lines>orders-"], vec![2, 1], vec![]),
            (&["customers-", "orders>customers", "lines>orders-"], vec![2], vec![]),
            (&["customers-", "orders>customers!-", "x"], vec![1], vec![2]),
            (&["customers-", "orders>customers!"], vec![], vec![1]),
        ] {
            let order = PublishOrder::of(&links(tables));
            assert_eq!(order.deleting, deleting, "{tables:?}");
            assert_eq!(order.prepared_first().collect::<Vec<_>>(), prepared, "{tables:?}");
            let last: Vec<bool> = order.published().iter().map(|(_, waits)| *waits).collect();
            assert_eq!(last.iter().filter(|waits| !**waits).count(), prepared.len(), "{tables:?}");
        }
    }

    #[test]
    fn loads_that_delete_know_which_tables_refer_to_theirs() {
        for (tables, referred) in [
            (&["orders>customers-", "customers-", "x-"][..], vec![(1, vec!["orders"])]),
            (&["orders>customers", "customers-", "notes>customers"], vec![(1, vec!["orders", "notes"])]),
            (&["orders>customers-", "customers"], vec![]),
            (&["customers-", "orders>customers-", "lines>orders"], vec![(0, vec!["orders"]), (1, vec!["lines"])]),
            (&["a>b-", "b>a-"], vec![(0, vec!["b"]), (1, vec!["a"])]),
        ] {
            let order = PublishOrder::of(&links(tables));
            let expected: Vec<(usize, Vec<String>)> = referred
                .into_iter()
                .map(|(load, tables)| (load, tables.into_iter().map(str::to_owned).collect()))
                .collect();
            assert_eq!(order.referred, expected, "{tables:?}");
        }
    }
}
