//! `now`, `current_date` and `current_time` in SQL: the time at which the logical run begins, in all steps of a run and
//! in all runs of a resume chain.
//!
//! DataFusion's own take the time at which each plan is made.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use millstream_job::Moment;

const NANOSECONDS: i64 = 1_000_000;

/// Makes the functions of time in `session` those of a logical run that begins at `moment`. Timestamps are in UTC, the
/// day and the time of day in its time zone.
pub fn begin_at(session: &SessionContext, moment: Moment) {
    let now = ScalarValue::TimestampNanosecond(moment.milliseconds().checked_mul(NANOSECONDS), None);
    let day = ScalarValue::Date32(Some(moment.day()));
    let time = ScalarValue::Time64Nanosecond(Some(moment.time_of_day()));
    for (name, alias, value) in
        [("now", Some("current_timestamp"), now), ("current_date", Some("today"), day), ("current_time", None, time)]
    {
        let aliases = alias.map(str::to_owned).into_iter().collect();
        let signature = Signature::nullary(Volatility::Stable);
        session.register_udf(ScalarUDF::from(TimeFunction { name, aliases, signature, value }));
    }
}

/// A function of time, whose value is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TimeFunction {
    name: &'static str,
    aliases: Vec<String>,
    signature: Signature,
    value: ScalarValue,
}

impl ScalarUDFImpl for TimeFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the function has a field, which says more than its type")
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(self.name, self.value.data_type(), false)))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(self.value.clone()))
    }

    fn simplify(&self, _: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(ExprSimplifyResult::Simplified(Expr::Literal(self.value.clone(), None)))
    }
}
