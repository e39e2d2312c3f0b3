//! Columns of one query that have one name.

use std::collections::BTreeSet;

use datafusion::common::{DFSchema, TableReference};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Spanned, Statement as SqlStatement,
};
use datafusion::sql::sqlparser::tokenizer::Span;
use millstream_job::SqlFault;

use super::files::as_read;
use super::{PlanFault, parse};

/// What is wrong if columns of `schema`, those of the query `sql`, have one name: joined tables often have some.
pub fn same_names(sql: &str, schema: &DFSchema) -> Option<PlanFault> {
    let (mut seen, mut doubles): (BTreeSet<&str>, Vec<(&str, Option<&TableReference>)>) = Default::default();
    for (table, column) in schema.iter() {
        if !seen.insert(column.name()) && doubles.iter().all(|(name, _)| name != column.name()) {
            doubles.push((column.name(), table));
        }
    }
    let (first, table) = *doubles.first()?;
    let names: Vec<&str> = doubles.iter().map(|(name, _)| *name).collect();
    let renamed = table.map(|table| format!("{table}.{first} AS {}_{first}", table.table()));
    let place = select(sql).and_then(|select| place(&select, first));
    let hint = match (renamed, &place) {
        (Some(renamed), Some((_, true))) => {
            format!("write the columns in place of `*`, and give one of them another name with AS: {renamed}")
        }
        (Some(renamed), _) => format!("give one of them another name with AS: {renamed}"),
        (None, _) => "give one of them another name with AS".to_owned(),
    };
    let what = format!("two columns have the same name: {}", names.join(", "));
    let (span, _) = place.unwrap_or((Span::empty(), false));
    let (line, column) = (span.start.line.max(1) as usize, span.start.column.max(1) as usize);
    let length = if span.start.line == span.end.line { span.end.column.saturating_sub(span.start.column) } else { 1 };
    Some(PlanFault { fault: SqlFault { line, column, what, hint: Some(hint) }, length: length.max(1) as usize })
}

/// The SELECT of a query, if it is no more than that.
fn select(sql: &str) -> Option<Select> {
    let Statement::Statement(statement) = parse(sql).ok()? else { return None };
    match *statement {
        SqlStatement::Query(query) => match *query.body {
            SetExpr::Select(select) => Some(*select),
            _ => None,
        },
        _ => None,
    }
}

/// The last item of `select` that gives the column `name`, and whether that stands for all columns of a table.
fn place(select: &Select, name: &str) -> Option<(Span, bool)> {
    let is_named = |ident: &Ident| as_read(ident) == name;
    let named = select.projection.iter().rev().find_map(|item| match item {
        SelectItem::UnnamedExpr(Expr::Identifier(column)) if is_named(column) => Some(column.span),
        SelectItem::UnnamedExpr(whole @ Expr::CompoundIdentifier(parts)) if parts.last().is_some_and(is_named) => {
            Some(whole.span())
        }
        SelectItem::ExprWithAlias { alias, .. } if is_named(alias) => Some(alias.span),
        _ => None,
    });
    let all = select.projection.iter().rev().find_map(|item| match item {
        SelectItem::Wildcard(options) => Some(options.wildcard_token.0.span),
        SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), _) => Some(table.span()),
        _ => None,
    });
    named.map(|span| (span, false)).or(all.map(|span| (span, true)))
}
