//! Columns that `USING` or NATURAL make one of two.
//!
//! They get the table that has their value in all rows: that of the left side, or of the right one of a RIGHT JOIN; of
//! a FULL JOIN the first of both that is not null. DataFusion does not find them in WHERE, and takes those of the left
//! side elsewhere, which are null where a RIGHT or FULL JOIN has no row there. What is ambiguous without `USING` stays
//! so.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, GroupByExpr, Ident, Join,
    JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, Query, ReplaceSelectElement, ReplaceSelectItem, Select,
    SelectItem, TableFactor, VisitMut, VisitorMut,
};

use super::files::as_read;

/// The columns of a table; `None` if there is none of that name.
pub type ColumnsOf<'a> = &'a dyn Fn(&str) -> Option<Vec<String>>;

/// Names the tables of the columns of `USING` where they stand without one.
pub fn qualify(statement: &mut Statement, columns_of: ColumnsOf<'_>) {
    if let Statement::Statement(query) = statement {
        let _ = query.as_mut().visit(&mut Selects { columns_of, expressions: Vec::new() });
    }
}

/// Finds the places.
struct Selects<'a> {
    columns_of: ColumnsOf<'a>,
    /// The names of common table expressions.
    expressions: Vec<String>,
}

impl VisitorMut for Selects<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let tables = query.with.iter().flat_map(|with| &with.cte_tables);
        self.expressions.extend(tables.map(|expression| as_read(&expression.alias.name)));
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let mut columns = Columns { merged: self.merged(select), depth: 0 };
        if let Some(condition) = &mut select.selection {
            condition.visit(&mut columns)?;
        }
        columns.merged.retain(|_, one| !one.is_left);
        if columns.merged.is_empty() {
            return ControlFlow::Continue(());
        }
        for item in &mut select.projection {
            match item {
                SelectItem::UnnamedExpr(expression) => {
                    let name = match &*expression {
                        Expr::Identifier(name) if columns.merged.contains_key(&as_read(name)) => Some(name.clone()),
                        _ => None,
                    };
                    expression.visit(&mut columns)?;
                    if let Some(alias) = name {
                        *item = SelectItem::ExprWithAlias { expr: expression.clone(), alias };
                    }
                }
                SelectItem::ExprWithAlias { expr, .. } => expr.visit(&mut columns)?,
                SelectItem::Wildcard(options) if options.opt_replace.is_none() => {
                    let items = columns.merged.values().map(Merged::replacement).collect();
                    options.opt_replace = Some(ReplaceSelectItem { items });
                }
                _ => {}
            }
        }
        if let GroupByExpr::Expressions(expressions, _) = &mut select.group_by {
            expressions.iter_mut().try_for_each(|expression| expression.visit(&mut columns))?;
        }
        select.having.iter_mut().try_for_each(|condition| condition.visit(&mut columns))
    }
}

/// A table in FROM, and the columns that it has, as far as they are known.
struct Table {
    name: Ident,
    columns: Option<Vec<String>>,
}

impl Table {
    /// Whether it has the column, for all that is known.
    fn may_have(&self, column: &str) -> bool {
        self.columns.as_ref().is_none_or(|columns| columns.iter().any(|one| one == column))
    }

    fn surely_has(&self, column: &str) -> bool {
        self.columns.is_some() && self.may_have(column)
    }

    fn column(&self, column: &Ident) -> Expr {
        Expr::CompoundIdentifier(vec![self.name.clone(), column.clone()])
    }
}

/// A column of `USING`.
#[derive(Clone)]
struct Merged {
    name: Ident,
    value: Expr,
    /// Whether it is that of the left side.
    is_left: bool,
    /// The numbers of the tables that it is one of.
    of: Vec<usize>,
}

impl Merged {
    /// What gives its value in place of the left side's.
    fn replacement(&self) -> Box<ReplaceSelectElement> {
        Box::new(ReplaceSelectElement { expr: self.value.clone(), column_name: self.name.clone(), as_keyword: true })
    }
}

impl Selects<'_> {
    /// What the columns of `USING` are, by their names.
    fn merged(&self, select: &Select) -> BTreeMap<String, Merged> {
        let (mut tables, mut merged): (Vec<Table>, BTreeMap<String, Merged>) = Default::default();
        for from in &select.from {
            let first = tables.len();
            let Some(table) = self.table(&from.relation) else { return BTreeMap::new() };
            tables.push(table);
            for join in &from.joins {
                let Some(right) = self.table(&join.relation) else { return BTreeMap::new() };
                for column in columns(join, &tables[first..], &right) {
                    let name = as_read(&column);
                    let before = merged.remove(&name);
                    if let Some(one) = one_of(join, before, &tables, first, &right, &column) {
                        merged.insert(name, one);
                    }
                }
                tables.push(right);
            }
        }
        let is_alone = |name: &String, one: &Merged| {
            tables.iter().enumerate().all(|(index, table)| match one.is_left {
                _ if one.of.contains(&index) => true,
                // Left alone, it is an error if another table has it, and the value of the left side otherwise.
                true => !table.may_have(name),
                false => !table.surely_has(name),
            })
        };
        merged.into_iter().filter(|(name, one)| is_alone(name, one)).collect()
    }

    /// `None` if its name cannot be told.
    fn table(&self, factor: &TableFactor) -> Option<Table> {
        match factor {
            TableFactor::Table { name, alias, .. } => {
                let [ObjectNamePart::Identifier(table)] = &name.0[..] else { return None };
                let read = as_read(table);
                let is_renamed = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
                let is_entry = !is_renamed && !self.expressions.contains(&read);
                let columns = if is_entry { (self.columns_of)(&read) } else { None };
                Some(Table { name: alias.as_ref().map_or(table, |alias| &alias.name).clone(), columns })
            }
            TableFactor::Derived { alias: Some(alias), .. } => Some(Table { name: alias.name.clone(), columns: None }),
            _ => None,
        }
    }
}

/// The columns that `join` makes one of those of `left` and `right`.
fn columns(join: &Join, left: &[Table], right: &Table) -> Vec<Ident> {
    use JoinOperator::{FullOuter, Inner, Join, Left, LeftOuter, Right, RightOuter};
    let names = match &join.join_operator {
        Join(constraint)
        | Inner(constraint)
        | Left(constraint)
        | LeftOuter(constraint)
        | Right(constraint)
        | RightOuter(constraint)
        | FullOuter(constraint) => match constraint {
            JoinConstraint::Using(names) => &names[..],
            JoinConstraint::Natural => {
                let of_both = |name: &&String| left.iter().any(|table| table.surely_has(name));
                let names = right.columns.iter().flatten().filter(of_both);
                return names.map(|name| Ident::with_quote('"', name)).collect();
            }
            _ => &[],
        },
        _ => &[],
    };
    names.iter().filter_map(|name| name.0.last().and_then(ObjectNamePart::as_ident)).cloned().collect()
}

/// What `column` is behind `join`, which puts `right` beside `tables` from number `first` on, of which some have it as
/// `before`. `None` if it is not known of which table it is.
fn one_of(
    join: &Join,
    before: Option<Merged>,
    tables: &[Table],
    first: usize,
    right: &Table,
    column: &Ident,
) -> Option<Merged> {
    let name = as_read(column);
    let left = before.or_else(|| {
        let mut having = (first..tables.len()).filter(|index| tables[*index].may_have(&name));
        let (index, others) = (having.next()?, having.next());
        let value = tables[index].column(column);
        others.is_none().then(|| Merged { name: column.clone(), value, is_left: true, of: vec![index] })
    })?;
    let (value, is_left) = match &join.join_operator {
        JoinOperator::Right(_) | JoinOperator::RightOuter(_) => (right.column(column), false),
        JoinOperator::FullOuter(_) => (first_of([left.value, right.column(column)]), false),
        _ => (left.value, left.is_left),
    };
    Some(Merged { name: left.name, value, is_left, of: left.of.into_iter().chain([tables.len()]).collect() })
}

/// `coalesce(…)`.
fn first_of(values: [Expr; 2]) -> Expr {
    let args = values.map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(value))).into();
    let args = FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() };
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new("coalesce")]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(args),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// Replaces the columns of an expression, and not those of queries in it.
struct Columns {
    merged: BTreeMap<String, Merged>,
    depth: usize,
}

impl VisitorMut for Columns {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let (Expr::Identifier(column), 0) = (&*expression, self.depth)
            && let Some(merged) = self.merged.get(&as_read(column))
        {
            let mut value = merged.value.clone();
            place(&mut value, column);
            *expression = value;
        }
        ControlFlow::Continue(())
    }
}

/// Gives the names in `value` the place of `column`.
fn place(value: &mut Expr, column: &Ident) {
    match value {
        Expr::CompoundIdentifier(parts) => parts.iter_mut().for_each(|part| part.span = column.span),
        Expr::Function(Function { args: FunctionArguments::List(list), .. }) => {
            for argument in &mut list.args {
                if let FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) = argument {
                    place(value, column);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::parse;

    #[test]
    fn columns_of_using_get_their_tables() {
        let columns = |table: &str| {
            let columns: &[&str] = match table {
                "a" => &["id", "x"],
                "b" => &["id", "y"],
                "c" => &["id", "y", "z"],
                _ => return None,
            };
            Some(columns.iter().map(|column| (*column).to_owned()).collect())
        };
        let qualified = |from: &str, condition: &str| {
            let mut statement = parse(&format!("SELECT * FROM {from} WHERE {condition}")).expect("a query");
            qualify(&mut statement, &columns);
            statement.to_string().split_once(" WHERE ").expect("a condition").1.to_owned()
        };
        for (from, condition, expected) in [
            ("a JOIN b USING (id)", "id > 1 AND ID < x", "a.id > 1 AND a.id < x"),
            ("a m LEFT JOIN b n USING (id)", "id > 1", "m.id > 1"),
            ("a RIGHT JOIN b USING (id)", "id > 1", "b.id > 1"),
            ("a FULL JOIN b USING (id)", "id > 1", "coalesce(a.id, b.id) > 1"),
            ("a JOIN b USING (id) LEFT JOIN c USING (id)", "id > 1", "a.id > 1"),
            ("a JOIN b USING (id) JOIN c USING (y)", "y > 1", "b.y > 1"),
            ("a JOIN (SELECT 1 AS id) d USING (id)", "id IN (SELECT id FROM b)", "a.id IN (SELECT id FROM b)"),
            ("a JOIN b USING (id) CROSS JOIN (SELECT 1 AS id) d", "id > 1", "id > 1"),
            // Another table has it as well, or a column of that name is of none of both.
            ("a JOIN b USING (id) JOIN c ON a.x = c.z", "id > 1", "id > 1"),
            ("a JOIN b USING (id), c", "id > 1", "id > 1"),
            ("a JOIN b ON a.id = b.id", "id > 1", "id > 1"),
        ] {
            assert_eq!(qualified(from, condition), expected, "{from}");
        }
        let selected = |query: &str| {
            let mut statement = parse(query).expect("a query");
            qualify(&mut statement, &columns);
            statement.to_string()
        };
        for (query, expected) in [
            ("SELECT id, x FROM a RIGHT JOIN b USING (id)", "SELECT b.id AS id, x FROM a RIGHT JOIN b USING(id)"),
            (
                "SELECT id + 1 AS n, count(*) FROM a FULL JOIN b USING (id) GROUP BY id HAVING id > 1",
                "SELECT coalesce(a.id, b.id) + 1 AS n, count(*) FROM a FULL JOIN b USING(id) GROUP BY \
                 coalesce(a.id, b.id) HAVING coalesce(a.id, b.id) > 1",
            ),
            (
                "SELECT * FROM a NATURAL FULL JOIN b",
                "SELECT * REPLACE (coalesce(a.\"id\", b.\"id\") AS \"id\") FROM a NATURAL FULL JOIN b",
            ),
            // The left side has the value in all rows.
            ("SELECT id, * FROM a LEFT JOIN b USING (id)", "SELECT id, * FROM a LEFT JOIN b USING(id)"),
        ] {
            assert_eq!(selected(query), expected);
        }
    }
}
