//! What all connections to one instance share, whatever protocol they speak.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::dial::{ConnectError, Dial, Link, dial_within};
use crate::wire::{Meter, Pulse, Wire};

/// The way to one instance and what is heard from it.
#[derive(Debug)]
pub(crate) struct Line {
    dial: Arc<dyn Dial>,
    pub(crate) connect_timeout: Duration,
    /// When the instance was last heard on any connection.
    pub(crate) pulse: Arc<Pulse>,
    /// Ends every open connection: the host is given up, and nothing will ever come over them.
    pub(crate) cut: Notify,
}

impl Line {
    pub(crate) fn new(dial: Arc<dyn Dial>, connect_timeout: Duration) -> Self {
        Self {
            dial,
            connect_timeout,
            pulse: Arc::default(),
            cut: Notify::new(),
        }
    }

    /// A stream to the instance.
    pub(crate) async fn dial(&self) -> Result<Link, ConnectError> {
        dial_within(&*self.dial, self.connect_timeout).await
    }

    /// The same, metered, for a connection that carries requests.
    pub(crate) async fn open(&self) -> Result<(Wire, Arc<Meter>), ConnectError> {
        let link = self.dial().await?;
        Ok(Wire::new(link, Arc::clone(&self.pulse)))
    }
}
