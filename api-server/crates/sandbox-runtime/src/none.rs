//! No sandboxes at all: every use of one fails, and says why.

use crate::{
    AcquireError, Acquired, ByteStream, ContainerSpec, Half, InstanceId, OpenError, Runtime, UnavailableReason,
};
use std::time::Duration;

/// Nothing runs code.
#[derive(Clone, Copy, Debug)]
pub struct NoRuntime;

#[async_trait::async_trait]
impl Runtime for NoRuntime {
    async fn find(&self, _: &ContainerSpec) -> Result<bool, AcquireError> {
        Ok(false)
    }

    async fn acquire(&self, _: &ContainerSpec, _: Duration) -> Result<Acquired, AcquireError> {
        Err(AcquireError::unavailable(UnavailableReason::NotConfigured, "the server was started without a runtime"))
    }

    async fn open(&self, _: &InstanceId, _: Half) -> Result<Box<dyn ByteStream>, OpenError> {
        Err(OpenError::Gone("there are no sandboxes".to_owned()))
    }

    fn forget(&self, _: &InstanceId) {}

    async fn replace(&self, _: &InstanceId) {}

    async fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    fn limitations(&self) -> Vec<String> {
        vec!["no code is run: the runtime is `none`".to_owned()]
    }

    async fn shut_down(&self) {}
}
