//! Tables of units, which plans read in each of the ways that are compared.

use crate::nodes::{Merge, ROWS, ReadUnits, Recipe, UNITS, UnknownLeaf};
use async_trait::async_trait;
use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use std::sync::Arc;

/// How a plan reads units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// The units are rows of an in-memory source, and a node above it reads them.
    Listed,
    /// The units are inside a leaf that Ballista does not know.
    Unknown,
    /// As `Listed`, under a node that makes one partition of many and does not say so.
    Merged,
    /// As `Merged`, and the node declares that it needs a single partition.
    Declared,
}

/// `units` units, in so many partitions.
#[derive(Debug, Clone, Copy)]
pub struct Units {
    pub leaf: Leaf,
    pub units: i64,
    pub partitions: usize,
    pub recipe: Recipe,
}

impl Units {
    fn plan(self) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(match self.leaf {
            Leaf::Listed => self.listed()?,
            Leaf::Unknown => Arc::new(UnknownLeaf::new(self.units, self.partitions, self.recipe)),
            Leaf::Merged => Arc::new(Merge::new(self.listed()?, false)),
            Leaf::Declared => Arc::new(Merge::new(self.listed()?, true)),
        })
    }

    fn listed(self) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions: Result<Vec<Vec<RecordBatch>>> = (0..self.partitions)
            .map(|partition| {
                let units = (partition as i64..self.units).step_by(self.partitions).collect::<Int64Array>();
                Ok(vec![RecordBatch::try_new(Arc::clone(&UNITS), vec![Arc::new(units)])?])
            })
            .collect();
        let units = MemorySourceConfig::try_new_exec(&partitions?, Arc::clone(&UNITS), None)?;
        Ok(Arc::new(ReadUnits::new(units, self.recipe)))
    }
}

#[async_trait]
impl TableProvider for Units {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&ROWS)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.plan()?;
        let Some(projection) = projection else { return Ok(plan) };
        let columns = projection.iter().map(|&index| {
            let name = ROWS.field(index).name();
            (Arc::new(Column::new(name, index)) as Arc<dyn PhysicalExpr>, name.clone())
        });
        Ok(Arc::new(ProjectionExec::try_new(columns.collect::<Vec<_>>(), plan)?))
    }
}
