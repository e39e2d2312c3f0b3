//! Sends the nodes of the experiments to schedulers and executors, and leaves all others to Ballista's own codec.

use crate::nodes::{Merge, ReadUnits, Recipe, UnknownLeaf};
use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use std::sync::Arc;

/// What the bytes of a node of the experiments begin with.
const MAGIC: &str = "millstream ";

#[derive(Debug, Default)]
pub struct Codec {
    rest: BallistaPhysicalExtensionCodec,
}

impl PhysicalExtensionCodec for Codec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(text) = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_prefix(MAGIC)) else {
            return self.rest.try_decode(bytes, inputs, context, converter);
        };
        decode(text, inputs).ok_or_else(|| DataFusionError::Internal(format!("{text:?} is no node")))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let text = if let Some(ReadUnits { recipe, .. }) = node.downcast_ref() {
            format!("read {} {}", recipe.rows, recipe.keys)
        } else if let Some(UnknownLeaf { units, partitions, recipe, .. }) = node.downcast_ref() {
            format!("leaf {units} {partitions} {} {}", recipe.rows, recipe.keys)
        } else if let Some(Merge { declared, .. }) = node.downcast_ref() {
            format!("merge {}", u8::from(*declared))
        } else {
            return self.rest.try_encode(node, bytes, converter);
        };
        bytes.extend_from_slice(MAGIC.as_bytes());
        bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

fn decode(text: &str, inputs: &[Arc<dyn ExecutionPlan>]) -> Option<Arc<dyn ExecutionPlan>> {
    let mut words = text.split(' ');
    let name = words.next()?;
    let numbers: Vec<i64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some(match (name, numbers.as_slice(), inputs) {
        ("read", &[rows, keys], [input]) => Arc::new(ReadUnits::new(Arc::clone(input), Recipe { rows, keys })),
        ("leaf", &[units, partitions, rows, keys], []) => {
            Arc::new(UnknownLeaf::new(units, partitions.try_into().ok()?, Recipe { rows, keys }))
        }
        ("merge", &[declared], [input]) => Arc::new(Merge::new(Arc::clone(input), declared != 0)),
        _ => return None,
    })
}
