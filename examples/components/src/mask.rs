//! A transform: `mask` hides texts except for their first characters.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use millstream::component::{
    ColumnName, ColumnsFault, EntryName, Fault, Relation, Spec, SpecInfo, Transform, TransformEntry, parse,
};
use millstream::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the transform `mask`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaskSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The columns to hide.
    #[schemars(length(min = 1))]
    pub columns: Vec<ColumnName>,
    /// How many characters of each text stay visible.
    #[serde(default)]
    pub shown: usize,
}

impl Spec for MaskSpec {
    const NAME: &'static str = "mask";
    const SUMMARY: &'static str = "Hides texts except for their first characters.";
    const EXAMPLE: &'static str = "mask: {from: ranked, columns: [email], shown: 2}\n";

    fn check(&self) -> Vec<Fault> {
        let twice = |(index, column): &(usize, &ColumnName)| {
            self.columns[..*index].iter().any(|earlier| earlier.as_str() == column.as_str())
        };
        let fault = |(index, column): (usize, &ColumnName)| {
            Fault::new(&format!("columns.{index}"), format!("`{}` is named twice", column.as_str()))
        };
        self.columns.iter().enumerate().filter(twice).map(fault).collect()
    }
}

/// The transform `mask`.
pub const ENTRY: TransformEntry = TransformEntry {
    spec: SpecInfo::of::<MaskSpec>(),
    build: &|settings| {
        let spec: MaskSpec = parse(settings)?;
        Ok(Relation::Map { from: Relation::of(spec.from.clone()), transform: Arc::new(Mask(spec)) })
    },
};

#[derive(Debug)]
struct Mask(MaskSpec);

impl Mask {
    fn hides(&self, field: &Field) -> bool {
        self.0.columns.iter().any(|column| column.as_str() == field.name())
    }

    fn masked(&self, column: &ArrayRef) -> Result<ArrayRef> {
        let failed = |cause| Error::internal("a text cannot be read").cause(cause);
        let texts = cast(column, &DataType::Utf8).map_err(failed)?;
        let mask = |text: &str| {
            let hidden = |(index, character)| if index < self.0.shown { character } else { '*' };
            text.chars().enumerate().map(hidden).collect::<String>()
        };
        let masked: StringArray = texts.as_string::<i32>().iter().map(|text| text.map(mask)).collect();
        Ok(Arc::new(masked))
    }
}

impl Transform for Mask {
    fn name(&self) -> &'static str {
        MaskSpec::NAME
    }

    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault> {
        for name in &self.0.columns {
            let column = name.as_str();
            let unknown = |_| ColumnsFault::of(name, Error::job(format!("there is no column `{column}`")));
            let field = input.field_with_name(column).map_err(unknown)?;
            if !field.data_type().is_string() {
                let error = Error::job(format!("`{column}` is not a text"));
                let hint = format!("leave it out, or cast it first: CAST({column} AS VARCHAR)");
                return Err(ColumnsFault::of(name, error.hint(hint)));
            }
        }
        let field = |field: &Arc<Field>| match self.hides(field) {
            true => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
            false => Arc::clone(field),
        };
        Ok(Arc::new(Schema::new(input.fields().iter().map(field).collect::<Vec<_>>())))
    }

    fn transform(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let schema = self.columns(&batch.schema()).map_err(|fault| fault.error)?;
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns.map(|(column, field)| match self.hides(field) {
            true => self.masked(column),
            false => Ok(Arc::clone(column)),
        });
        let masked = RecordBatch::try_new(Arc::clone(&schema), columns.collect::<Result<_>>()?);
        masked.map_err(|cause| Error::internal("the masked rows do not fit").cause(cause))
    }
}
