//! Names that the planner gives to fields of structs that it takes out early, `__datafusion_extracted_1`, and what
//! people call these: `customer['name']`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::Schema;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

/// What all such names begin with; a number follows.
const PREFIX: &str = "__datafusion_extracted_";

/// Names of the planner, and what they stand for.
#[derive(Debug, Default)]
pub struct PlannerNames(HashMap<String, String>);

impl PlannerNames {
    /// Those in `plan` and below.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut names = PlannerNames::default();
        names.add(plan);
        names
    }

    fn add(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        plan.children().into_iter().for_each(|child| self.add(child));
        let schema = plan.schema();
        if !schema.fields().iter().any(|field| field.name().starts_with(PREFIX)) {
            return;
        }
        let mut expressions = Vec::new();
        let all = plan.apply_expressions(&mut |expression| {
            expressions.push(Arc::clone(expression));
            Ok(TreeNodeRecursion::Continue)
        });
        // Others than projections only pass on what was named below.
        if all.is_err() || expressions.len() != schema.fields().len() {
            return;
        }
        for (field, expression) in schema.fields().iter().zip(&expressions) {
            if field.name().starts_with(PREFIX) && !self.0.contains_key(field.name()) {
                let words = self.in_words(expression);
                self.0.insert(field.name().clone(), words);
            }
        }
    }

    /// `expression` as SQL would have it.
    fn in_words(&self, expression: &Arc<dyn PhysicalExpr>) -> String {
        if let Some(column) = expression.downcast_ref::<Column>() {
            return self.0.get(column.name()).cloned().unwrap_or_else(|| column.name().to_owned());
        }
        match expression.downcast_ref::<ScalarFunctionExpr>().filter(|call| call.name() == "get_field") {
            Some(call) if !call.args().is_empty() => {
                let fields = call.args()[1..].iter().map(|field| match field.downcast_ref::<Literal>() {
                    Some(name) => format!("['{}']", name.value()),
                    None => format!("[{field}]"),
                });
                self.in_words(&call.args()[0]) + &fields.collect::<String>()
            }
            _ => expression.to_string(),
        }
    }

    /// `rows` with columns as people call them.
    pub fn in_rows(&self, rows: &RecordBatch) -> RecordBatch {
        if self.0.is_empty() {
            return rows.clone();
        }
        let fields = rows.schema_ref().fields().iter().map(|field| match self.0.get(field.name()) {
            Some(words) => Arc::new(field.as_ref().clone().with_name(words)),
            None => Arc::clone(field),
        });
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        let renamed = RecordBatch::try_new_with_options(Arc::new(schema), rows.columns().to_vec(), &options);
        renamed.unwrap_or_else(|_| rows.clone())
    }

    /// `text` of a plan with columns as people call them, without their places in a batch.
    pub fn in_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !text.contains(PREFIX) {
            return Cow::Borrowed(text);
        }
        let mut parts = text.split(PREFIX);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (number, rest) = part.split_at(part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len()));
            let name = format!("{PREFIX}{number}");
            out.push_str(self.0.get(&name).unwrap_or(&name));
            let place = rest.strip_prefix('@').map(|place| place.trim_start_matches(|c: char| c.is_ascii_digit()));
            out.push_str(place.unwrap_or(rest));
        }
        Cow::Owned(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_planner_are_replaced_in_texts() {
        let names = [("1", "c['a']"), ("12", "c['b']")];
        let names = names.map(|(number, words)| (format!("{PREFIX}{number}"), words.to_owned()));
        let names = PlannerNames(names.into_iter().collect());
        let text =
            "FilterExec: __datafusion_extracted_12@10 > __datafusion_extracted_1@1, x@2 as __datafusion_extracted_3";
        assert_eq!(names.in_text(text), "FilterExec: c['b'] > c['a'], x@2 as __datafusion_extracted_3");
        assert_eq!(names.in_text("n@0 > 1"), "n@0 > 1");
    }
}
