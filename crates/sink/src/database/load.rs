//! A load into a database's table, from its beginning to its commit. It owns the routes that rows take, what is visible
//! when, and what is left behind; statements and types are the servers', the search for bad rows is `narrow.rs`'s.
//!
//! ```text
//!  direct   writers ─▶ one connection, one transaction ─▶ target              commit: COMMIT
//!  new      writers ─▶ connections, each its own commits ─▶ new table         commit: it takes the target's name
//!  staged   writers ─▶ connections, each its own commits ─▶ staging table ─▶ target, one transaction    commit: COMMIT
//! ```
//! Tables of ours carry the name of a lock that the load holds as long as it lives: one whose lock is free is a dead
//! load's, and the next one drops it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, SchemaRef};
use async_trait::async_trait;
use futures::FutureExt;
use millstream_core::sink::{Load, LoadContext, Refusals, Refused, SHOWN_BAD_ROWS, Writer};
use millstream_core::{Budget, Error, ErrorKind, Result, Step, fail_point};
use millstream_database::family::Family;
use millstream_database::load::{Key, NewTable, Publish};
use millstream_database::table::{ARRIVAL, Bulk, BulkColumn, ColumnFacts, Index, TableFacts};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::action::Action;
use super::commit;
use super::entry::blamed;
use super::group::{BadRow, Group, Rows, numbered};
use super::indexes::Waiting;
use super::lanes::{Lanes, connect, pause};
use super::ledger::{self, Mark, Note};
use super::narrow;
use super::server::{Connection, Encoder, Failure, Right, Server, target_of};
use super::spec::{DatabaseSpec, Mode, SchemaChange};
use super::table::{self, Changes};
use crate::shared::counted;

/// What the names of our tables and locks begin with.
pub(crate) const PREFIX: &str = "_millstream_";

/// How many connections load if nobody says so, and rows do not go straight into the target.
const CONNECTIONS: usize = 2;

/// How rows get into the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// One transaction, straight into the target.
    Direct,
    /// Into a new table that takes the target's name.
    New,
    /// Into a staging table, and from there into the target, or into a new table if there is none.
    Staged(Publish),
}

/// The route of a load; `facts` are those of the target, if it is there. If it `may_refuse` rows, they go straight to
/// the target, which tells which of them it does not take, wherever that is possible.
pub(crate) fn route(
    spec: &DatabaseSpec,
    connections: usize,
    facts: Option<&TableFacts>,
    can_copy: bool,
    may_refuse: bool,
) -> Route {
    match (spec.mode, facts) {
        (Mode::Merge, _) => Route::Staged(Publish::Merge),
        (Mode::Ignore, _) => Route::Staged(Publish::Ignore),
        (_, None) | (Mode::Replace, _) => Route::New,
        (Mode::Truncate, Some(_)) if can_copy => Route::New,
        (Mode::Truncate, Some(_)) if may_refuse => Route::Direct,
        (Mode::Truncate, Some(_)) => Route::Staged(Publish::Instead),
        (Mode::Append, Some(_)) if connections == 1 || may_refuse => Route::Direct,
        (Mode::Append, Some(_)) => Route::Staged(Publish::Add),
    }
}

/// How many connections load. An order that the user asked for is kept by one.
pub(crate) fn connections(spec: &DatabaseSpec, exists: bool, ordered: bool) -> usize {
    let few = spec.mode == Mode::Append && exists;
    if ordered { 1 } else { spec.connections.unwrap_or(if few { 1 } else { CONNECTIONS }) }
}

/// Runs `work`, a part of a load, on the runtime of the network.
pub(crate) async fn on_io<T: Send + 'static>(
    io: &Handle,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    millstream_database::on_io(io, "a task of the load", work).await
}

/// What the tasks of a load share.
pub(crate) struct Shared {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) spec: DatabaseSpec,
    /// `table t of mysql://…`.
    pub(crate) place: String,
    /// What the names of the load's own tables begin with, if it has any.
    pub(crate) own: Option<String>,
    pub(crate) bulk: Bulk,
    pub(crate) lanes: Lanes,
    pub(crate) direct: bool,
    pub(crate) step: Arc<Step>,
    /// Who decides about rows that the table does not take.
    pub(crate) refusals: Option<Arc<dyn Refusals>>,
    /// How many rows were left out.
    pub(crate) refused: AtomicU64,
    /// How rows were sent by a slower way, if they were.
    pub(crate) detour: std::sync::Mutex<Option<String>>,
}

impl Shared {
    /// Notes by which way `connection` has sent rows.
    pub(crate) fn note_detour(&self, connection: &dyn Connection) {
        if let Some(detour) = connection.detour() {
            self.detour.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(detour);
        }
    }

    /// What the server says of a table of the load's own, as if it were said of the target.
    fn of_target(&self, text: &str) -> String {
        let (Some(own), target) = (&self.own, self.server.dialect().bare_table(&self.spec.table)) else {
            return text.to_owned();
        };
        text.replace(&format!("{own}_rows"), target).replace(&format!("{own}_new"), target)
    }

    /// The same of an error's cause.
    fn error_of_target(&self, error: Error) -> Error {
        let cause = error.cause_text().map(|cause| self.of_target(cause));
        cause.into_iter().fold(error, |error, cause| error.cause(cause))
    }

    /// The slower way that rows were sent by, in brackets; nothing if there was none.
    pub(crate) fn detour(&self) -> String {
        let detour = self.detour.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        detour.map_or(String::new(), |detour| format!(" ({detour})"))
    }
}

/// Indexes of the target that wait for the rows.
enum Indexes {
    /// None do.
    Stay,
    /// They are dropped and built in the transaction of the load.
    Inside(Vec<Index>),
    /// They are dropped before it, and built behind it.
    Around(Arc<Waiting>),
    /// The new table is made without them, and gets them before it takes the target's name.
    Of(Vec<Index>),
}

/// A load that has begun.
pub(crate) struct DatabaseLoad {
    shared: Arc<Shared>,
    /// The connection that holds the lock and publishes.
    control: Arc<Mutex<Option<Box<dyn Connection>>>>,
    route: Route,
    names: Names,
    exists: bool,
    facts: Option<TableFacts>,
    schema: SchemaRef,
    budget: Arc<Budget>,
    io: Handle,
    rows: Arc<AtomicU64>,
    arrivals: Arc<AtomicU64>,
    indexes: Indexes,
    /// Notes, in the transaction that makes the rows visible, that they are.
    note: Option<Arc<Note>>,
    /// Rows that the publishing wrote.
    published: Arc<AtomicU64>,
    /// The transaction that is left open for the commit, if it has a name.
    transaction: Arc<Mutex<Option<String>>>,
}

/// The tables of a load.
#[derive(Debug, Clone)]
struct Names {
    id: String,
    target: String,
    new: String,
    new_name: String,
    staging: String,
    old: String,
    old_name: String,
}

impl Names {
    fn new(server: &dyn Server, spec: &DatabaseSpec, run: &str, sink: &str) -> Self {
        use std::hash::{BuildHasher, RandomState};
        // Random, so that runs of several machines never have the same.
        let id = format!("{PREFIX}{:016x}", RandomState::new().hash_one((run, sink)));
        let (new_name, old_name) = (format!("{id}_new"), format!("{id}_old"));
        Names {
            target: server.dialect().table(&spec.table),
            new: server.dialect().beside(&spec.table, &new_name),
            staging: server.dialect().beside(&spec.table, &format!("{id}_rows")),
            old: server.dialect().beside(&spec.table, &old_name),
            id,
            new_name,
            old_name,
        }
    }
}

/// Looks at the target; `None` if there is none.
pub(crate) async fn examine(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
) -> Result<(Option<TableFacts>, Changes), Vec<Error>> {
    let one = |failure: Failure| vec![failure.into_error()];
    let Some(facts) = connection.describe(&spec.table).await.map_err(one)? else {
        return Ok((None, Changes::default()));
    };
    let key = spec.key.iter().map(|key| server.dialect().quoted(key)).collect::<Vec<_>>().join(", ");
    let index = || {
        format!(
            "CREATE UNIQUE INDEX {} ON {} ({key})",
            server.dialect().quoted("key"),
            server.dialect().table(&spec.table)
        )
    };
    let family = |field: &FieldRef| server.dialect().family(field.data_type(), spec.is_key(field.name()));
    let changes = table::compare(&target_of(server, spec), spec, schema, &facts, family, index)?;
    Ok((Some(facts), changes))
}

/// Whether the user may change the target, which is there, as far as the server tells without waiting for anybody.
pub(crate) async fn may_write(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: &TableFacts,
) -> Result<(), Vec<Error>> {
    // A table that takes the place of the target is the user's own.
    if spec.mode == Mode::Replace {
        return Ok(());
    }
    let columns: Vec<&ColumnFacts> = schema.fields().iter().filter_map(|field| facts.column(field.name())).collect();
    let names = |keys: bool| {
        let wanted = columns.iter().filter(|column| keys || !spec.is_key(&column.name));
        wanted.map(|column| column.name.clone()).collect::<Vec<_>>()
    };
    let mut rights = vec![Right::Insert(names(true))];
    match spec.mode {
        Mode::Merge => rights.push(Right::Update(names(false))),
        Mode::Truncate => {
            rights.push(Right::Empty { truncates: !server.dialect().empty("t", Some(facts)).starts_with("DELETE") })
        }
        _ => {}
    }
    let missing =
        connection.missing_rights(&spec.table, &rights).await.map_err(|failure| vec![failure.into_error()])?;
    let refused = |cause: String| {
        Error::refused(format!("the user may not write to {}", target_of(server, spec)))
            .cause(cause)
            .hint("GRANT the user what is missing")
    };
    if missing.is_empty() { Ok(()) } else { Err(missing.into_iter().map(refused).collect()) }
}

/// The target as it is when it fits the rows, changed if that is allowed; `None` if there is none.
async fn fitting(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
) -> Result<Option<TableFacts>> {
    let first = |faults: Vec<Error>| faults.into_iter().next().unwrap_or_else(|| Error::internal("a fault of none"));
    let (facts, changes) = examine(server, connection, spec, schema).await.map_err(first)?;
    if change(server, connection, spec, &changes).await? {
        return connection.describe(&spec.table).await.map_err(Failure::into_error);
    }
    Ok(facts)
}

/// The target, ready to be loaded into directly; it is made if there is none.
pub(crate) async fn ready_target(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
) -> Result<TableFacts> {
    if let Some(facts) = fitting(server, connection, spec, schema).await? {
        return Ok(facts);
    }
    let create = server.dialect().create_table(&server.dialect().table(&spec.table), schema, &spec.key, false);
    let made = connection.execute(&create).await;
    // Another run of the same load may have made it just now.
    match fitting(server, connection, spec, schema).await? {
        Some(facts) => Ok(facts),
        None => Err(match made {
            Err(failure) => cannot_make(failure.into_error(), spec),
            Ok(_) => Error::transient(format!("{} was dropped while it was made", target_of(server, spec))),
        }),
    }
}

/// Begins a load.
pub(crate) async fn begin(server: Arc<dyn Server>, spec: DatabaseSpec, context: LoadContext) -> Result<Arc<dyn Load>> {
    let io = context.io.clone();
    on_io(&io, async move { set_up(server, spec, context).await }).await
}

/// A load that is ready for rows, or one whose rows are there already.
async fn set_up(server: Arc<dyn Server>, mut spec: DatabaseSpec, context: LoadContext) -> Result<Arc<dyn Load>> {
    let mut control = connect(server.as_ref(), &spec).await?;
    let connection = control.as_mut();
    let (mut note, waiting) = (None, Waiting::new(&server, &spec));
    if let Some(mark) = context.mark.as_ref().filter(|_| spec.mode == Mode::Append) {
        match ledger::mark(&server, connection, &spec, mark, &context).await? {
            Mark::There(note) => {
                if connection.describe(&spec.table).await.map_err(Failure::into_error)?.is_none() {
                    return Err(table::is_gone(&target_of(server.as_ref(), &spec)));
                }
                waiting.build_all(connection).await?;
                clean(&server, connection, &spec).await?;
                return Ok(Arc::new(LoadedBefore { server, spec, note, io: context.io }));
            }
            Mark::Missing(missing) => note = Some(missing),
            Mark::Nowhere => {}
        }
    }
    let owner = note.as_ref().map(|note| note.owner().to_owned());
    if let Some(owner) = &owner {
        connection.mark(owner).await.map_err(Failure::into_error)?;
    }
    actions(connection, &spec.before, "before").await?;
    let facts = fitting(server.as_ref(), connection, &spec, &context.schema).await?;
    let names = Names::new(server.as_ref(), &spec, &context.run, &context.sink);
    clean(&server, connection, &spec).await?;
    if !connection.lock(&names.id).await.map_err(Failure::into_error)? {
        return Err(Error::internal("another load has the same name"));
    }
    if !spec.defer_indexes {
        waiting.build_all(connection).await?;
    }
    let exists = facts.is_some();
    let count = connections(&spec, exists, context.ordered);
    let like = facts.as_ref().and_then(|facts| server.dialect().create_like(&names.new, &names.target, facts));
    let route = route(&spec, count, facts.as_ref(), like.is_some(), context.refusals.is_some());
    let columns = bulk_columns(server.as_ref(), &spec, &context.schema, facts.as_ref());
    let column_names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    spec.name_like(&column_names);
    // Only what is loaded into before it is seen can wait for its key.
    let key_waits = spec.defer_key && route == Route::New;
    let create = |name: &str| server.dialect().create_table(name, &context.schema, &spec.key, key_waits);
    let (made, into) = match route {
        Route::Direct => (vec![], &names.target),
        Route::New if spec.mode == Mode::Truncate && exists => (like.into_iter().collect(), &names.new),
        Route::New => (vec![create(&names.new)], &names.new),
        Route::Staged(_) => {
            let model = if exists { &names.target } else { &names.new };
            let arrival = spec.mode.needs_key();
            let staging =
                server.dialect().create_staging(&names.staging, model, &column_names, arrival, facts.as_ref());
            let new: Vec<String> = if exists { vec![] } else { vec![create(&names.new)] };
            ([new, staging].concat(), &names.staging)
        }
    };
    for statement in made {
        connection.execute(&statement).await.map_err(|failure| cannot_make(failure.into_error(), &spec))?;
    }
    if let (Route::Staged(_), Some(facts)) = (route, &facts) {
        check_staged(connection, &names.staging, facts).await?;
    }
    let indexes = match spec.defer_indexes && exists {
        true => deferred(&server, connection, &spec, route, &names, waiting).await?,
        false => Indexes::Stay,
    };
    let mut bulk_columns = columns;
    if route != Route::Direct && spec.mode.needs_key() {
        bulk_columns.push(arrival_column());
    }
    let direct = route == Route::Direct;
    if direct {
        if let Indexes::Around(waiting) = &indexes {
            waiting.drop_all(connection).await?;
        }
        connection.execute("BEGIN").await.map_err(Failure::into_error)?;
        if let Indexes::Inside(indexes) = &indexes {
            for index in indexes {
                let drop = server.dialect().drop_index(&names.target, &index.name);
                connection.execute(&drop).await.map_err(Failure::into_error)?;
            }
        }
        if spec.mode == Mode::Truncate {
            let empty = server.dialect().empty(&names.target, facts.as_ref());
            connection.execute(&empty).await.map_err(Failure::into_error)?;
        }
    }
    // There are no tables of ours then, whose lock the control connection would have to hold.
    let (lanes, control) = match direct {
        true => (Lanes::only(&server, &spec, control), None),
        false => (Lanes::new(&server, &spec, count).marked(owner.as_deref()), Some(control)),
    };
    let own = route == Route::New && !(spec.mode == Mode::Truncate && exists);
    let bulk = match own {
        true => server.dialect().bulk_into_own(into, bulk_columns, &context.schema),
        false => server.dialect().bulk(into, bulk_columns, &context.schema),
    };
    let shared = Shared {
        bulk,
        place: target_of(server.as_ref(), &spec),
        own: Some(names.id.clone()),
        lanes,
        direct,
        step: Arc::clone(&context.step),
        refusals: context.refusals.clone(),
        refused: AtomicU64::new(0),
        detour: std::sync::Mutex::default(),
        server,
        spec,
    };
    Ok(Arc::new(DatabaseLoad { note, indexes, ..DatabaseLoad::new(shared, control, route, names, facts, context) }))
}

/// Lets the staging table check what the target does, so that a bad row is told by itself. What it cannot check, since
/// a column is missing in it, the target does when the rows are moved.
async fn check_staged(connection: &mut dyn Connection, staging: &str, facts: &TableFacts) -> Result<()> {
    for check in &facts.checks {
        match connection.execute(&format!("ALTER TABLE {staging} ADD {check}")).await {
            Ok(_) | Err(Failure::Other(_)) => {}
            Err(other) => return Err(other.into_error()),
        }
    }
    Ok(())
}

/// The indexes of the target, which is there, as they wait in a load by `route`.
async fn deferred(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    route: Route,
    names: &Names,
    waiting: Waiting,
) -> Result<Indexes> {
    let indexes = connection.indexes(&spec.table).await.map_err(Failure::into_error)?;
    if route == Route::New {
        // A copy of the target, which is empty.
        for index in &indexes {
            connection
                .execute(&server.dialect().drop_index(&names.new, &index.name))
                .await
                .map_err(Failure::into_error)?;
        }
        return Ok(Indexes::Of(indexes));
    }
    Ok(if server.dialect().transactional_tables() {
        Indexes::Inside(indexes)
    } else {
        Indexes::Around(Arc::new(waiting))
    })
}

/// The order of arrival in a staging table.
fn arrival_column() -> BulkColumn {
    BulkColumn::new(ARRIVAL, Family::Integer { bytes: 8, signed: true })
}

/// Where the user may not make tables, some things still work.
fn cannot_make(error: Error, spec: &DatabaseSpec) -> Error {
    let denied = error.cause_text().is_some_and(|cause| cause.contains("denied"));
    if !denied {
        return error;
    }
    let hint = match spec.mode {
        Mode::Append => {
            "the user may not make tables: `mode: append` into a table that is there works without, with \
                         `connections: 1`"
        }
        _ => {
            "the user may not make tables, which this mode needs: GRANT CREATE (and DROP, ALTER), or use `mode: \
             append` \
              into a table that is there"
        }
    };
    error.hint(hint)
}

pub(crate) fn bulk_columns(
    server: &dyn Server,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: Option<&TableFacts>,
) -> Vec<BulkColumn> {
    let facts = facts.filter(|_| spec.mode != Mode::Replace);
    let column = |field: &FieldRef| match facts.and_then(|facts| facts.column(field.name())) {
        Some(column) => {
            let replaces_null = column.replaces_null;
            BulkColumn { replaces_null, ..BulkColumn::new(&column.name, column.family) }
        }
        None => BulkColumn::new(field.name(), server.dialect().family(field.data_type(), spec.is_key(field.name()))),
    };
    schema.fields().iter().map(column).collect()
}

/// Runs the user's own statements and commands.
async fn actions(connection: &mut dyn Connection, actions: &[Action], when: &str) -> Result<()> {
    for action in actions {
        let statement = match action {
            Action::Statement(statement) => statement,
            Action::Command(line) => {
                line.run(when).await?;
                continue;
            }
        };
        connection.execute(statement).await.map_err(|failure| {
            let error = failure.into_error();
            let cause = error.cause_text().unwrap_or(error.what()).to_owned();
            Error::refused(format!("a statement of `{when}` failed")).text(statement).cause(cause)
        })?;
    }
    Ok(())
}

/// Runs the user's statements behind the commit. With a note, whoever goes on with a load that dies before their end
/// runs them again.
async fn run_after(connection: &mut dyn Connection, spec: &DatabaseSpec, note: Option<&Note>) -> Result<()> {
    if spec.after.is_empty() {
        return Ok(());
    }
    fail_point::pass("after.before");
    let hint = match note {
        Some(_) => "the rows were committed before; mend it, and `--resume` runs all of `after` again",
        None => "the rows were committed before; mend it and run it by hand",
    };
    actions(connection, &spec.after, "after").await.map_err(|error| error.hint(hint))?;
    fail_point::pass("after.after");
    if let Some(note) = note {
        // Otherwise they would only be run once more.
        let _ = note.end(connection).await;
    }
    Ok(())
}

/// Changes the target so that it takes the rows; whether there was anything to change.
async fn change(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    changes: &Changes,
) -> Result<bool> {
    if spec.schema == SchemaChange::Freeze || (changes.added.is_empty() && changes.widened.is_empty()) {
        return Ok(false);
    }
    let typed = |field: &FieldRef| server.dialect().column_type(field.data_type(), spec.is_key(field.name()));
    let added: Vec<_> = changes.added.iter().map(|field| (field.name().clone(), typed(field))).collect();
    let widened: Vec<_> = changes.widened.iter().map(|(column, field)| (column.clone(), typed(field))).collect();
    for statement in server.dialect().alter(&server.dialect().table(&spec.table), &added, &widened) {
        connection.execute(&statement).await.map_err(Failure::into_error)?;
    }
    Ok(true)
}

/// Drops the tables of loads that are dead, but for those of other users, who may drop them.
pub(crate) async fn clean(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
) -> Result<()> {
    let mut dead: Vec<String> = Vec::new();
    let tables = connection.tables(&spec.table, PREFIX).await.map_err(Failure::into_error)?;
    for name in tables {
        let Some(id) = name.get(..PREFIX.len() + 16).filter(|id| name[id.len()..].starts_with('_')) else { continue };
        if !dead.iter().any(|known| known == id) {
            if !connection.lock(id).await.map_err(Failure::into_error)? {
                continue;
            }
            dead.push(id.to_owned());
        }
        match drop_dead(server, connection, spec, &name).await {
            Ok(()) | Err(Failure::Other(_)) => {}
            Err(other) => return Err(other.into_error()),
        }
    }
    for id in dead {
        connection.unlock(&id).await.map_err(Failure::into_error)?;
    }
    Ok(())
}

/// Drops the table `name` of a load that is dead.
async fn drop_dead(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    name: &str,
) -> Result<(), Failure> {
    ledger::give_up(server, connection, spec, name).await?;
    connection.execute(&format!("DROP TABLE IF EXISTS {}", server.dialect().beside(&spec.table, name))).await.map(drop)
}

impl DatabaseLoad {
    fn new(
        shared: Shared,
        control: Option<Box<dyn Connection>>,
        route: Route,
        names: Names,
        facts: Option<TableFacts>,
        context: LoadContext,
    ) -> Self {
        DatabaseLoad {
            shared: Arc::new(shared),
            control: Arc::new(Mutex::new(control)),
            route,
            names,
            exists: facts.is_some(),
            facts,
            schema: context.schema,
            budget: context.budget,
            io: context.io,
            rows: Arc::default(),
            arrivals: Arc::default(),
            note: None,
            indexes: Indexes::Stay,
            published: Arc::default(),
            transaction: Arc::default(),
        }
    }

    /// The statement that builds the key of the new table, if that was made without it. A copy of the target has its
    /// keys.
    fn deferred_key(&self) -> Option<String> {
        let Shared { server, spec, .. } = self.shared.as_ref();
        let is_copy = spec.mode == Mode::Truncate && self.exists;
        (spec.defer_key && !is_copy).then(|| server.dialect().add_key(&self.names.new, &spec.key))
    }

    /// The statements that make everything ready up to the last one, and those that make it visible.
    fn publishing(&self) -> Publishing {
        let (server, names) = (self.shared.server.as_ref(), &self.names);
        let together = server.dialect().transactional_tables();
        let columns: Vec<String> = self.shared.bulk.columns.iter().map(|column| column.name.clone()).collect();
        let columns: Vec<String> = columns.into_iter().filter(|name| name != ARRIVAL).collect();
        let spec = &self.shared.spec;
        let new = NewTable {
            target: &spec.table,
            exists: self.exists,
            name: &names.new_name,
            old_name: &names.old_name,
            has_key: !spec.key.is_empty(),
        };
        let swap = || server.dialect().swap(new);
        let mut publishing = Publishing::default();
        match self.route {
            // In the transaction that is open.
            Route::Direct => {
                if let Indexes::Inside(indexes) = &self.indexes {
                    publishing.first = server.dialect().create_indexes(&names.target, indexes);
                }
            }
            Route::New if together => publishing.transaction = self.deferred_key().into_iter().chain(swap()).collect(),
            Route::New => {
                publishing.first.extend(self.deferred_key());
                if let Indexes::Of(indexes) = &self.indexes {
                    publishing.first.extend(server.dialect().create_indexes(&names.new, indexes));
                }
                publishing.last = swap();
            }
            Route::Staged(how) => {
                let into = if self.exists { &names.target } else { &names.new };
                let facts = self.facts.as_ref();
                let inside = if let Indexes::Inside(indexes) = &self.indexes { indexes.as_slice() } else { &[] };
                publishing.transaction =
                    inside.iter().map(|index| server.dialect().drop_index(into, &index.name)).collect();
                let order = spec.order();
                let key = Key { columns: &spec.key, order: &order };
                publishing.transaction.extend(server.dialect().publish(
                    how,
                    &names.staging,
                    into,
                    key,
                    &columns,
                    facts,
                ));
                publishing.counted = Some(publishing.transaction.len() - 1);
                publishing.transaction.extend(server.dialect().create_indexes(into, inside));
                publishing.transaction.extend(server.dialect().mark_staged(&names.staging));
                let new = if self.exists { vec![] } else { swap() };
                if together {
                    publishing.transaction.push(format!("DROP TABLE {}", names.staging));
                    publishing.transaction.extend(new);
                } else {
                    publishing.last = new;
                }
            }
        }
        publishing
    }

    /// The indexes that wait around the transaction.
    fn around(&self) -> Option<Arc<Waiting>> {
        if let Indexes::Around(waiting) = &self.indexes { Some(Arc::clone(waiting)) } else { None }
    }

    /// The tables that may still be there.
    fn leftovers(&self) -> Vec<String> {
        let names = &self.names;
        let all = match self.route {
            Route::Direct => vec![],
            Route::New => vec![&names.new, &names.old],
            Route::Staged(_) => vec![&names.staging, &names.new, &names.old],
        };
        all.into_iter().map(|name| format!("DROP TABLE IF EXISTS {name}")).collect()
    }

    /// How many rows the tables have taken.
    fn taken(&self) -> u64 {
        self.rows.load(Ordering::Relaxed).saturating_sub(self.shared.refused.load(Ordering::Relaxed))
    }

    fn summary(&self) -> String {
        let all = self.taken();
        let verb = match self.shared.spec.mode {
            Mode::Append => "added to",
            Mode::Merge => "merged into",
            Mode::Ignore => "offered to",
            Mode::Replace | Mode::Truncate => "in",
        };
        let rows = counted(all, "row");
        let left_out = match self.shared.spec.mode {
            Mode::Ignore => format!(", {} left out as duplicates", counted(self.ignored(), "row")),
            _ => String::new(),
        };
        let detour = self.shared.detour();
        format!("{rows} {verb} {}{left_out}{detour}", self.shared.place)
    }
}

/// What happens between the last row and the commit.
#[derive(Debug, Default)]
struct Publishing {
    /// Statements before the transaction, on tables that nobody sees.
    first: Vec<String>,
    /// Statements of a transaction that is left open.
    transaction: Vec<String>,
    /// Which of them tells how many rows were written.
    counted: Option<usize>,
    /// Statements behind the commit that make a new table visible, where tables have no transactions.
    last: Vec<String>,
}

/// Runs the transaction up to its last statement, again if others are in its way; how many rows it published.
async fn run_transaction(
    shared: &Shared,
    connection: &mut dyn Connection,
    publishing: &Publishing,
    note: Option<&Note>,
) -> Result<u64> {
    let mut tries = 0;
    loop {
        match try_transaction(connection, publishing, note).await {
            Err(Failure::Again { .. }) if tries < shared.spec.retries => {
                connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
                pause(tries).await;
                tries += 1;
            }
            Ok(rows) => return Ok(rows),
            Err(failure) => {
                let is_row = matches!(failure, Failure::Rows(_));
                let target = shared.server.dialect().table(&shared.spec.table);
                let error = blamed(connection, &[&target], failure).await;
                return Err(if is_row { moved_together(error) } else { error });
            }
        }
    }
}

/// A row is refused where nobody can tell which one.
pub(crate) fn moved_together(error: Error) -> Error {
    let way = "the rows are moved into the table all at once, so it tells of one that breaks a key, and none can be \
               left out: \
               filter such rows out";
    let hint = error.hint_text().map_or_else(|| way.to_owned(), |hint| format!("{hint}; {way}"));
    error.hint(hint)
}

async fn try_transaction(
    connection: &mut dyn Connection,
    publishing: &Publishing,
    note: Option<&Note>,
) -> Result<u64, Failure> {
    let mut rows = 0;
    connection.execute("BEGIN").await?;
    for (index, statement) in publishing.transaction.iter().enumerate() {
        let changed = connection.execute(statement).await?;
        if publishing.counted == Some(index) {
            rows = changed;
        }
    }
    if let Some(note) = note {
        note.write(connection).await?;
    }
    Ok(rows)
}

/// The target took fewer rows than it was given, without a word.
fn dropped(place: &str, written: u64, of: u64) -> Error {
    Error::data(format!("{place} took {written} of {}", counted(of, "row")))
        .cause("nothing was refused: a trigger or a rule of the table leaves rows out")
        .hint("nothing was loaded; filter such rows out before, so that the counts fit, or drop the trigger")
}

fn no_control() -> Error {
    Error::internal("the load has no connection left to publish by")
}

#[async_trait]
impl Load for DatabaseLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        let spec = &self.shared.spec;
        let encoder = self.shared.server.encoder(&self.shared.bulk, &self.schema, spec);
        Ok(Box::new(RowWriter {
            shared: Arc::clone(&self.shared),
            encoder,
            columns: (0..self.schema.fields().len()).collect(),
            group: None,
            kept: Vec::new(),
            tasks: JoinSet::new(),
            io: self.io.clone(),
            budget: Arc::clone(&self.budget),
            rows: Arc::clone(&self.rows),
            arrivals: spec.mode.needs_key().then(|| Arc::clone(&self.arrivals)),
        }))
    }

    async fn prepare(&self) -> Result<()> {
        let publishing = self.publishing();
        let (control, published) = (Arc::clone(&self.control), Arc::clone(&self.published));
        let (transaction, new_name) = (Arc::clone(&self.transaction), self.names.new_name.clone());
        let (shared, note, around) = (Arc::clone(&self.shared), self.note.clone(), self.around());
        let expected = matches!(self.route, Route::Staged(Publish::Add | Publish::Instead)).then(|| self.taken());
        let start = Instant::now();
        let done = on_io(&self.io, async move {
            if shared.direct {
                // A connection that is lost is told before other sinks commit.
                let mut connection = shared.lanes.take().await?;
                connection.query("SELECT 1").await.map_err(Failure::into_error)?;
                for statement in &publishing.first {
                    connection.execute(statement).await.map_err(Failure::into_error)?;
                }
                if let Some(note) = &note {
                    note.write(connection.as_mut()).await.map_err(Failure::into_error)?;
                }
                let named = connection.as_mut().transaction().await.map_err(Failure::into_error)?;
                *transaction.lock().await = named;
                shared.lanes.give(connection);
                return Ok(());
            }
            drop(shared.lanes.close());
            let mut control = control.lock().await;
            let connection = control.as_mut().ok_or_else(no_control)?.as_mut();
            for statement in &publishing.first {
                connection.execute(statement).await.map_err(Failure::into_error)?;
            }
            if let Some(around) = &around {
                around.drop_all(connection).await?;
            }
            if publishing.transaction.is_empty() {
                // A table that is only renamed has no transaction to note anything in.
                if let Some(note) = &note {
                    note.intend(connection, &new_name).await.map_err(Failure::into_error)?;
                }
                return Ok(());
            }
            let rows = run_transaction(&shared, connection, &publishing, note.as_deref()).await?;
            if let Some(expected) = expected.filter(|expected| *expected != rows) {
                return Err(dropped(&shared.place, rows, expected));
            }
            published.store(rows, Ordering::Relaxed);
            *transaction.lock().await = connection.transaction().await.map_err(Failure::into_error)?;
            Ok(())
        });
        let done = done.await;
        self.shared.step.add_waiting_output(start.elapsed());
        done.map_err(|error| self.shared.error_of_target(error))
    }

    fn ignored(&self) -> u64 {
        match self.shared.spec.mode {
            Mode::Ignore => self.taken().saturating_sub(self.published.load(Ordering::Relaxed)),
            _ => 0,
        }
    }

    async fn commit(&self) -> Result<String> {
        let publishing = self.publishing();
        let leftovers = self.leftovers();
        let (shared, control) = (Arc::clone(&self.shared), Arc::clone(&self.control));
        let (summary, around, note) = (self.summary(), self.around(), self.note.clone());
        let renaming = Proof::Renamed {
            lock: self.names.id.clone(),
            note: self.note.clone(),
            new_name: self.names.new_name.clone(),
        };
        let new_name = self.names.new_name.clone();
        let staged = matches!(self.route, Route::Staged(_)).then(|| self.names.staging.clone());
        let proof = match (self.transaction.lock().await.take(), &self.note, staged) {
            (_, Some(note), _) => Proof::Noted(Arc::clone(note)),
            (Some(name), None, _) => Proof::Transaction(name),
            (None, None, Some(staging)) => Proof::Staged(staging, self.taken()),
            (None, None, None) => Proof::None,
        };
        on_io(&self.io, async move {
            let mut connection = if shared.direct {
                shared.lanes.take().await?
            } else {
                control.lock().await.take().ok_or_else(no_control)?
            };
            if shared.direct || !publishing.transaction.is_empty() {
                let is_there = || async { matches!(found_out(&shared, &proof).await, Ok((_, Some(true)))) }.boxed();
                let committed = commit::unless_it_is_there(connection.as_mut(), "COMMIT", is_there).await;
                connection = seen_through(&shared, connection, committed, &proof).await?;
            }
            for statement in &publishing.last {
                fail_point::pass("rename.before");
                let is_there = || is_renamed(&shared, &new_name).boxed();
                let renamed = commit::unless_it_is_there(connection.as_mut(), statement, is_there).await;
                fail_point::pass("rename.after");
                connection = seen_through(&shared, connection, renamed, &renaming).await?;
            }
            let connection = connection.as_mut();
            if let Some(around) = around {
                around.build_all(connection).await.map_err(|error| {
                    let hint = error.hint_text().unwrap_or_default().to_owned();
                    error.hint(format!("the rows were committed before; {hint}"))
                })?;
            }
            for statement in leftovers {
                // The rows are there; what stays is dropped by the next run.
                let _ = connection.execute(&statement).await;
            }
            run_after(connection, &shared.spec, note.as_deref()).await?;
            Ok(summary)
        })
        .await
    }

    async fn abort(&self) {
        let leftovers = self.leftovers();
        let (shared, control) = (Arc::clone(&self.shared), Arc::clone(&self.control));
        let (lock, new_name) = (self.names.id.clone(), self.names.new_name.clone());
        let (noted, around) = (self.note.is_some(), self.around());
        let taken_back = on_io(&self.io, async move {
            for mut connection in shared.lanes.close() {
                let _ = connection.execute("ROLLBACK").await;
                if let (Some(around), true) = (&around, shared.direct) {
                    around.build_all(connection.as_mut()).await?;
                }
            }
            if leftovers.is_empty() {
                return Ok(());
            }
            let mut kept = control.lock().await.take();
            if let Some(connection) = &mut kept
                && connection.execute("ROLLBACK").await.is_err()
            {
                kept = None;
            }
            let mut connection = match kept {
                Some(connection) => connection,
                // The connection is what failed. If the server is gone, or still busy with it, the next run cleans up.
                None => {
                    let mut other = shared.server.connect(&shared.spec).await?;
                    match other.as_mut().lock(&lock).await.map_err(Failure::into_error)? {
                        true => other,
                        false => return Ok(()),
                    }
                }
            };
            if let Some(around) = around {
                around.build_all(connection.as_mut()).await?;
            }
            if noted {
                let given_up = ledger::give_up(&shared.server, connection.as_mut(), &shared.spec, &new_name).await;
                given_up.map_err(Failure::into_error)?;
            }
            for statement in leftovers {
                connection.execute(&statement).await.map_err(Failure::into_error)?;
            }
            Ok(())
        });
        // Nothing of the load is visible either way.
        let _ = taken_back.await;
    }
}

/// A load whose rows an earlier run has made visible: they are taken, and not written again.
struct LoadedBefore {
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    /// If the statements behind the commit may not have run.
    note: Option<Arc<Note>>,
    io: Handle,
}

#[async_trait]
impl Load for LoadedBefore {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(crate::shared::NoWriter))
    }

    fn is_there(&self) -> bool {
        true
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn commit(&self) -> Result<String> {
        let (server, spec) = (Arc::clone(&self.server), self.spec.clone());
        if let Some(note) = self.note.clone().filter(|_| !spec.after.is_empty()) {
            let (server, spec) = (Arc::clone(&server), spec.clone());
            on_io(&self.io, async move {
                let mut connection = connect(server.as_ref(), &spec).await?;
                run_after(connection.as_mut(), &spec, Some(&note)).await
            })
            .await?;
        }
        Ok(format!("nothing new for {}: its rows were added before", target_of(server.as_ref(), &spec)))
    }

    async fn abort(&self) {}
}

/// What tells, over another connection, whether a commit that was not answered was done.
enum Proof {
    /// The transaction has a name that the server knows.
    Transaction(String),
    /// The ledger has the note that was a part of it.
    Noted(Arc<Note>),
    /// The staging table has fewer rows than were loaded into it.
    Staged(String, u64),
    /// The new table is not under its own name any more, once the connection that renames it, and holds this lock, is
    /// gone.
    Renamed { lock: String, note: Option<Arc<Note>>, new_name: String },
    /// Nothing does.
    None,
}

impl Proof {
    /// Whether the ledger tells.
    fn is_noted(&self) -> bool {
        matches!(self, Proof::Noted(_) | Proof::Renamed { note: Some(_), .. })
    }
}

/// A connection to go on with when something was committed, even if the answer was lost.
async fn seen_through(
    shared: &Shared,
    connection: Box<dyn Connection>,
    done: Result<Option<u64>, Failure>,
    proof: &Proof,
) -> Result<Box<dyn Connection>> {
    let lost = match done {
        Ok(Some(_)) => return Ok(connection),
        Ok(None) => {
            drop(connection);
            return connect(shared.server.as_ref(), &shared.spec).await;
        }
        Err(Failure::Lost(error)) => error,
        Err(other) => return Err(other.into_error()),
    };
    drop(connection);
    let cause = lost.cause_text().unwrap_or(lost.what()).to_owned();
    for tries in 0..=shared.spec.retries {
        match found_out(shared, proof).await {
            Ok((connection, Some(true))) => return Ok(connection),
            Ok((_, Some(false))) => {
                return Err(Error::transient(format!("the connection was lost before {} was committed", shared.place))
                    .cause(cause)
                    .hint("look at the server's log; nothing was loaded, and the load can be started again"));
            }
            Err(error) if proof.is_noted() && error.kind() != ErrorKind::Transient => {
                return Err(error);
            }
            Ok((_, None)) | Err(_) => pause(tries).await,
        }
    }
    Err(Error::refused(format!("the connection was lost while {} was committed", shared.place))
        .cause(cause)
        .hint("nobody can tell from here whether the rows are there: look before the job is started again"))
}

/// Whether no table has the name of the new one any more, while whoever renames it may still be at it.
async fn is_renamed(shared: &Shared, new_name: &str) -> bool {
    let Ok(mut connection) = connect(shared.server.as_ref(), &shared.spec).await else { return false };
    let left = connection.as_mut().tables(&shared.spec.table, new_name).await;
    left.is_ok_and(|left| left.is_empty())
}

/// Asks over a new connection whether the proof is there; `None` if that is not decided yet.
async fn found_out(shared: &Shared, proof: &Proof) -> Result<(Box<dyn Connection>, Option<bool>)> {
    let mut connection = connect(shared.server.as_ref(), &shared.spec).await?;
    let server = shared.server.as_ref();
    let found = match proof {
        Proof::Transaction(name) => connection.as_mut().was_committed(name).await,
        Proof::Noted(note) => note.is_written(connection.as_mut()).await.map(Some),
        Proof::Staged(staging, rows) => connection.query(&server.dialect().count_staged(staging)).await.map(|found| {
            let count = found.into_iter().flatten().flatten().next().and_then(|text| text.parse::<u64>().ok());
            // Of no rows none was published, whichever way it ended.
            count.map(|count| *rows == 0 || count < *rows)
        }),
        Proof::Renamed { lock, note, new_name } => {
            if !connection.as_mut().lock(lock).await.map_err(Failure::into_error)? {
                return Ok((connection, None));
            }
            match note {
                Some(note) => note.is_written(connection.as_mut()).await.map(Some),
                None => {
                    let left = connection.as_mut().tables(&shared.spec.table, new_name).await;
                    left.map(|found| Some(found.is_empty()))
                }
            }
        }
        Proof::None => Ok(None),
    };
    Ok((connection, found.map_err(Failure::into_error)?))
}

/// Encodes the rows of one partition and hands them to the connections.
struct RowWriter {
    shared: Arc<Shared>,
    encoder: Box<dyn Encoder>,
    /// The columns that are written.
    columns: Vec<usize>,
    group: Option<Group>,
    /// The rows of the group as they came, if someone may ask for them.
    kept: Vec<RecordBatch>,
    tasks: JoinSet<Result<()>>,
    io: Handle,
    budget: Arc<Budget>,
    rows: Arc<AtomicU64>,
    arrivals: Option<Arc<AtomicU64>>,
}

#[async_trait]
impl Writer for RowWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let count = batch.num_rows() as u64;
        let arrival = self.arrivals.as_ref().map(|arrivals| arrivals.fetch_add(count, Ordering::Relaxed));
        let written =
            batch.project(&self.columns).map_err(|cause| Error::internal("a column is missing").cause(cause))?;
        let mut row = 0;
        while row < batch.num_rows() {
            let (start, first) = (Instant::now(), row);
            let (spec, budget) = (&self.shared.spec, &self.budget);
            let group = self
                .group
                .get_or_insert_with(|| Group::new(budget, usize::try_from(spec.batch_bytes.0).unwrap_or(usize::MAX)));
            row = self.encoder.encode(&written, row, arrival, group)?;
            let full = group.is_full(spec.batch_rows);
            self.shared.step.add_busy(start.elapsed());
            let some_refused = !group.refused.is_empty();
            if self.shared.refusals.is_some() {
                self.kept.push(batch.slice(first, row - first));
            }
            if full || (some_refused && self.shared.refusals.is_none()) {
                self.flush().await?;
            }
        }
        self.rows.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        self.flush().await?;
        let start = Instant::now();
        let mut ended = Ok(());
        while let Some(done) = self.tasks.join_next().await {
            ended = ended.and(task_result(done));
        }
        self.shared.step.add_waiting_output(start.elapsed());
        ended
    }
}

fn task_result(done: Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    done.unwrap_or_else(|cause| Err(Error::internal("a task of the load broke off").cause(cause)))
}

impl RowWriter {
    /// Hands the group over as soon as a connection is free.
    async fn flush(&mut self) -> Result<()> {
        let Some(mut group) = self.group.take().filter(|group| !group.is_empty()) else { return Ok(()) };
        let (own, kept) = (std::mem::take(&mut group.refused), std::mem::take(&mut self.kept));
        if self.shared.refusals.is_none() && !own.is_empty() {
            return Err(refused(own, Vec::new(), &[]).into_error(&self.shared.place));
        }
        let start = Instant::now();
        let permit = self.shared.lanes.permit().await?;
        self.shared.step.add_waiting_output(start.elapsed());
        while let Some(done) = self.tasks.try_join_next() {
            task_result(done)?;
        }
        let (shared, rows) = (Arc::clone(&self.shared), group.sealed());
        self.tasks.spawn_on(
            async move {
                let sent = send(&shared, rows, own, kept).await;
                drop(permit);
                sent.map_err(|error| shared.error_of_target(error))
            },
            &self.io,
        );
        Ok(())
    }
}

/// Sends a group, in a transaction of its own unless the whole load is one.
/// `own` of its rows could not be encoded; `kept` are all of them, as they came.
async fn send(shared: &Shared, rows: Rows, own: Vec<BadRow>, kept: Vec<RecordBatch>) -> Result<()> {
    let mut connection = shared.lanes.take().await?;
    let mut tries = 0;
    let accepted = loop {
        match try_send(shared, connection.as_mut(), &rows, &own, &kept).await {
            Err(Failure::Again { error, undone, waited }) => {
                if tries >= shared.spec.retries || (undone && shared.direct) {
                    let failure = Failure::Again { error, undone, waited };
                    return Err(blamed(connection.as_mut(), &[&shared.bulk.table], failure).await);
                }
                let back = if shared.direct { narrow::TAKE_BACK } else { "ROLLBACK" };
                connection.execute(back).await.map_err(Failure::into_error)?;
                pause(tries).await;
                tries += 1;
            }
            other => break other.map_err(Failure::into_error)?,
        }
    };
    shared.note_detour(connection.as_ref());
    shared.lanes.give(connection);
    accepted?;
    shared.step.add_bytes(rows.part(0..rows.count()).len() as u64);
    Ok(())
}

/// Whether the rows were sent, all but those that may be left out; the inner error is that of a load that may not.
async fn try_send(
    shared: &Shared,
    connection: &mut dyn Connection,
    rows: &Rows,
    own: &[BadRow],
    kept: &[RecordBatch],
) -> Result<Result<()>, Failure> {
    connection.execute(if shared.direct { narrow::REMEMBER } else { "BEGIN" }).await?;
    let room = shared.refusals.as_ref().map_or(0, |refusals| refusals.room(rows.count() as u64));
    let most = room.saturating_sub(own.len()).saturating_add(1).max(SHOWN_BAD_ROWS);
    let mut bad = narrow::load(shared.server.as_ref(), connection, &shared.bulk, rows, most).await?;
    bad.iter_mut().for_each(|row| row.reason = shared.of_target(&row.reason));
    let count = (own.len() + bad.len()) as u64;
    if count > 0 {
        let all = Refused { more: bad.len() >= most, ..refused(own.to_vec(), bad, kept) };
        let accepted = match &shared.refusals {
            Some(refusals) => refusals.refuse(&shared.place, &all),
            None => Err(all.into_error(&shared.place)),
        };
        if let Err(error) = accepted {
            connection.execute(if shared.direct { narrow::TAKE_BACK } else { "ROLLBACK" }).await?;
            return Ok(Err(error));
        }
        shared.refused.fetch_add(count, Ordering::Relaxed);
    }
    connection.execute(if shared.direct { narrow::KEEP } else { "COMMIT" }).await?;
    Ok(Ok(()))
}

/// The bad rows of a group, each with itself out of `kept`.
fn refused(own: Vec<BadRow>, bad: Vec<BadRow>, kept: &[RecordBatch]) -> Refused {
    let record = |row: usize| {
        let mut left = row;
        let batch = kept.iter().find(|batch| {
            let here = left < batch.num_rows();
            left -= if here { 0 } else { batch.num_rows() };
            here
        })?;
        Some(batch.slice(left, 1))
    };
    let rows = numbered(own, bad).into_iter().map(|(row, one)| one.told(row as u64, record(row)));
    Refused { rows: rows.collect(), more: false }
}
