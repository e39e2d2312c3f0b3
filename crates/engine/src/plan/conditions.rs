//! The rules of checks as expressions over the rows that they are about.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, ExprSchemable, Operator, binary_expr, lit};
use millstream_core::columns::type_name;
use millstream_core::hint::did_you_mean;
use millstream_job::{Located, Rule, SqlFault};

use super::exact::keeps_digits;
use super::steps::StepFault;
use crate::sql::{PlanFault, plan_fault};

/// The expressions of `rule` over rows with the columns of `schema`: a condition, the columns of a key, or none.
///
/// # Errors
/// A column that is not there, or whose type the rule does not fit; a condition that is none.
pub fn expressions(rule: &Rule, schema: &DFSchema, state: &SessionState) -> Result<Vec<Expr>, Box<StepFault>> {
    let column = |name: &Located<String>| column(name, schema);
    Ok(match rule {
        Rule::Rows(_) => Vec::new(),
        Rule::NotNull(name) => vec![column(name)?.0.is_not_null()],
        Rule::Unique(names) => {
            names.iter().map(|name| column(name).map(|(column, _)| column)).collect::<Result<_, _>>()?
        }
        Rule::Values(name, values) => {
            let (column, kind) = column(name)?;
            let values = values.iter().map(|value| literal(value, &kind, name)).collect::<Result<_, _>>()?;
            vec![column.in_list(values, false)]
        }
        Rule::Matches(name, pattern) => {
            let (column, kind) = column(name)?;
            if !matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
                let what = format!("`{}` is no text but {}, and cannot be matched", name.value, type_name(&kind));
                return Err(fault(name, what, "use `range`, `values` or `sql`"));
            }
            vec![binary_expr(column, Operator::RegexMatch, lit(pattern.value.as_str()))]
        }
        Rule::Range { column: name, min, max } => {
            let (column, kind) = column(name)?;
            let limit = |limit: &Option<Located<String>>| limit.as_ref().map(|limit| literal(limit, &kind, name));
            let min = limit(min).transpose()?.map(|min| column.clone().gt_eq(min));
            let max = limit(max).transpose()?.map(|max| column.lt_eq(max));
            min.into_iter().chain(max).reduce(Expr::and).into_iter().collect()
        }
        Rule::Sql(condition) => vec![sql(condition, schema, state)?],
    })
}

/// The column `name`, and its type.
fn column(name: &Located<String>, schema: &DFSchema) -> Result<(Expr, DataType), Box<StepFault>> {
    if let Some((qualifier, field)) = schema.iter().find(|(_, field)| *field.name() == name.value) {
        return Ok((Expr::from((qualifier, field)), field.data_type().clone()));
    }
    let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let what = format!("there is no column `{}` to check", name.value);
    Err(fault(name, what, did_you_mean(&name.value, "columns", &known)))
}

/// A value of the column `name`, as it is written.
fn literal(value: &Located<String>, kind: &DataType, name: &Located<String>) -> Result<Expr, Box<StepFault>> {
    let cast = ScalarValue::Utf8(Some(value.value.clone())).cast_to(kind).ok();
    cast.filter(|_| keeps_digits(&value.value, kind)).map(lit).ok_or_else(|| {
        let what = format!("`{}` is no value of `{}`, which is {}", value.value, name.value, type_name(kind));
        fault(value, what, "write a value of the column's type")
    })
}

/// A condition over the columns of one row.
fn sql(condition: &Located<String>, schema: &DFSchema, state: &SessionState) -> Result<Expr, Box<StepFault>> {
    let expression = state.create_logical_expr(&condition.value, schema).map_err(|error| {
        let fault = plan_fault(&condition.value, &error);
        Box::new(StepFault { text: condition.clone(), fault })
    })?;
    let mut of_others = None;
    let walked = expression.apply(|part| {
        of_others = of_others.or(match part {
            Expr::AggregateFunction(_) | Expr::WindowFunction(_) => Some("combines several rows"),
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) => Some("reads other entries"),
            _ => None,
        });
        Ok(TreeNodeRecursion::Continue)
    });
    if let (Ok(_), Some(what)) = (walked, of_others) {
        let what = format!("the condition {what}, and a check looks at one row at a time");
        return Err(fault(condition, what, "compute it in a transform, and check its rows"));
    }
    match expression.get_type(schema) {
        Ok(DataType::Boolean | DataType::Null) => Ok(expression),
        Ok(other) => {
            let what = format!("the condition is {}, and has to be true or false", type_name(&other));
            Err(fault(condition, what, "compare it with something"))
        }
        Err(error) => {
            let fault = plan_fault(&condition.value, &error);
            Err(Box::new(StepFault { text: condition.clone(), fault }))
        }
    }
}

/// A fault of a whole text.
fn fault(text: &Located<String>, what: String, hint: impl Into<String>) -> Box<StepFault> {
    let fault = SqlFault { line: 1, column: 1, what, hint: Some(hint.into()) };
    let length = text.value.chars().count().max(1);
    Box::new(StepFault { text: text.clone(), fault: PlanFault { fault, length } })
}
