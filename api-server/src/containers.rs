//! Which container a request runs in, and whose it is.

use crate::{auth::Identity, trouble::explain};
use sandbox_runtime::{AcquireError, ContainerKey, ContainerKind, ContainerSpec, Sandboxes, UnavailableReason};
use std::time::Duration;
use wire::{ApiError, ErrorType, Surface, id::container_made_at};

/// Age at which the containers of the Anthropic surface are deleted.
pub const LIFETIME: Duration = Duration::from_hours(720);
/// How ids of the users' own containers begin on the Zylon surface.
const OWN_PREFIX: &str = "user_";

/// The containers that one request may name.
#[derive(Clone, Debug)]
pub struct Containers {
    surface: Surface,
    identity: Identity,
}

impl Containers {
    /// Those of this caller on this surface.
    pub fn of(surface: Surface, identity: &Identity) -> Self {
        Self { surface, identity: identity.clone() }
    }

    /// What the container that clients call `id` is to the runtime.
    pub fn spec(&self, id: &str) -> ContainerSpec {
        let (user, lifetime) = match self.surface {
            Surface::Anthropic => (None, Some(LIFETIME)),
            Surface::Zylon => (Some(self.identity.user.as_str()), None),
        };
        let own = self.surface == Surface::Zylon && id == self.own_id();
        let kind = if own { ContainerKind::Default } else { ContainerKind::Explicit };
        let key = ContainerKey { kind, workspace: &self.identity.workspace, user, id };
        ContainerSpec { name: key.name(), owner: key.owner(), lifetime }
    }

    /// Id of the container that a Zylon user has without naming one.
    fn own_id(&self) -> String {
        let Identity { workspace, user, key_id: _ } = &self.identity;
        let key = ContainerKey { kind: ContainerKind::Default, workspace, user: Some(user), id: "" };
        format!("{OWN_PREFIX}{}", key.owner().as_str())
    }

    /// The id to use: `None` stands for a fresh container, named by its first call. `deferred` is the container of a call
    /// in the history that has not run yet; it may be made, whoever names it.
    pub async fn resolve(
        &self,
        sandboxes: &Sandboxes,
        named: Option<&str>,
        deferred: Option<&str>,
        now_millis: u64,
    ) -> Result<Option<String>, ApiError> {
        match (self.surface, named) {
            (Surface::Anthropic, None) => Ok(deferred.map(str::to_owned)),
            (Surface::Anthropic, Some(id)) if deferred == Some(id) => Ok(Some(id.to_owned())),
            (Surface::Anthropic, Some(id)) => match sandboxes.find(&self.spec(id)).await {
                Ok(true) => Ok(Some(id.to_owned())),
                Ok(false) | Err(AcquireError::NotFound) => Err(absent(id, now_millis)),
                Err(AcquireError::Expired) => Err(ApiError::container_expired(id)),
                Err(error @ (AcquireError::Unavailable { .. } | AcquireError::TimedOut(_))) => Err(unavailable(&error)),
            },
            (Surface::Zylon, None) => Ok(Some(self.own_id())),
            (Surface::Zylon, Some(id)) if id.starts_with(OWN_PREFIX) && id != self.own_id() => {
                Err(ApiError::container_not_found(id))
            }
            (Surface::Zylon, Some(id)) => Ok(Some(id.to_owned())),
        }
    }
}

/// Expired and unknown are told apart by the time that the id carries, without a record of either.
fn absent(id: &str, now_millis: u64) -> ApiError {
    let lifetime = u64::try_from(LIFETIME.as_millis()).unwrap_or(u64::MAX);
    match container_made_at(id) {
        Some(made) if made.saturating_add(lifetime) < now_millis => ApiError::container_expired(id),
        Some(_) | None => ApiError::container_not_found(id),
    }
}

/// For a container that is not to be had.
pub fn unavailable(error: &AcquireError) -> ApiError {
    tracing::warn!(%error, "no container");
    let never = matches!(error, AcquireError::Unavailable { reason: UnavailableReason::NotConfigured, .. });
    // A client tries again what is overloaded.
    ApiError::new(if never { ErrorType::InvalidRequest } else { ErrorType::Overloaded }, explain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::IdSeed;

    fn containers(surface: Surface, workspace: &str, user: &str) -> Containers {
        let key_id = String::new();
        Containers::of(surface, &Identity { workspace: workspace.into(), user: user.into(), key_id })
    }

    #[test]
    fn anthropic_containers_belong_to_the_workspace_and_zylon_ones_to_its_user() {
        let name = |surface, workspace, user| containers(surface, workspace, user).spec("x").name.as_str().to_owned();
        assert_eq!(name(Surface::Anthropic, "w", "ann"), name(Surface::Anthropic, "w", "bob"));
        assert_ne!(name(Surface::Anthropic, "w", "ann"), name(Surface::Anthropic, "v", "ann"));
        assert_ne!(name(Surface::Zylon, "w", "ann"), name(Surface::Zylon, "w", "bob"));
        assert_ne!(name(Surface::Zylon, "w", "ann"), name(Surface::Anthropic, "w", "ann"));
    }

    #[test]
    fn a_users_own_container_is_not_the_explicit_one_of_the_same_id_in_another_users_hands() {
        let ann = containers(Surface::Zylon, "w", "ann");
        let bob = containers(Surface::Zylon, "w", "bob");
        assert_ne!(ann.own_id(), bob.own_id());
        assert_ne!(ann.spec(&ann.own_id()).name, bob.spec(&ann.own_id()).name);
        assert_eq!(ann.spec("x").lifetime, None);
        assert_eq!(containers(Surface::Anthropic, "w", "ann").spec("x").lifetime, Some(LIFETIME));
    }

    #[test]
    fn an_absent_container_has_expired_when_its_id_is_older_than_its_lifetime() {
        let made = 1_000_000_000_000;
        let call = IdSeed { millis: made, random: [1; 10] }.server_tool_use();
        let id = wire::id::container_of_call(&call).unwrap();
        let lifetime = u64::try_from(LIFETIME.as_millis()).unwrap();
        assert_eq!(absent(&id, made + lifetime), ApiError::container_not_found(&id));
        assert_eq!(absent(&id, made + lifetime + 1), ApiError::container_expired(&id));
        assert_eq!(absent("nonsense", made), ApiError::container_not_found("nonsense"));
    }
}
