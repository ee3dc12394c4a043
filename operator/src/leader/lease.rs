//! The Lease in the cluster.

use super::{Found, Lease, LeaseError, LeaseStore};
use crate::refusal::words_of;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease as Resource, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::time::Duration;

/// A Lease of the cluster.
#[derive(Clone, Debug)]
pub struct KubeLease {
    api: Api<Resource>,
    name: String,
    /// For a Lease that does not say how long it lasts.
    fallback: Duration,
}

impl KubeLease {
    /// The client must neither be behind the gate nor send a write again by itself.
    pub fn new(client: Client, namespace: &str, name: String, fallback: Duration) -> Self {
        Self { api: Api::namespaced(client, namespace), name, fallback }
    }
}

impl LeaseStore for KubeLease {
    async fn read(&self) -> Result<Option<Found>, LeaseError> {
        let found = self.api.get_opt(&self.name).await.map_err(|error| LeaseError::Failed(words_of(&error)))?;
        Ok(found.map(|resource| read(resource, self.fallback)))
    }

    async fn write(&self, lease: &Lease, version: Option<&str>) -> Result<String, LeaseError> {
        let spec = spec_of(lease);
        let written = match version {
            None => {
                let mut resource = Resource { spec: Some(spec), ..Resource::default() };
                resource.metadata.name = Some(self.name.clone());
                self.api.create(&PostParams::default(), &resource).await
            }
            // The server takes a patch with a version for that version only, and leaves labels and annotations of others alone.
            Some(version) => {
                let patch = json!({ "metadata": { "resourceVersion": version }, "spec": spec });
                self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await
            }
        };
        let version_of = |resource: Resource| resource.resource_version().unwrap_or_default();
        written.map(version_of).map_err(|error| write_error(&error, version.is_some()))
    }
}

fn write_error(error: &kube::Error, existed: bool) -> LeaseError {
    match error {
        kube::Error::Api(status) if status.code == 409 => LeaseError::Outdated,
        // It was deleted since. For one that is created, 404 means that there is no such namespace.
        kube::Error::Api(status) if status.code == 404 && existed => LeaseError::Outdated,
        other => LeaseError::Failed(words_of(other)),
    }
}

fn read(resource: Resource, fallback: Duration) -> Found {
    let version = resource.resource_version().unwrap_or_default();
    let LeaseSpec { acquire_time, holder_identity, lease_duration_seconds, lease_transitions, renew_time, .. } =
        resource.spec.unwrap_or_default();
    let time = |time: Option<MicroTime>| time.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let seconds = lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let lease = Lease {
        holder: holder_identity.unwrap_or_default(),
        duration: seconds.map_or(fallback, Duration::from_secs),
        transitions: lease_transitions.unwrap_or(0),
        acquired: time(acquire_time),
        renewed: time(renew_time),
    };
    Found { lease, version }
}

fn spec_of(lease: &Lease) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(lease.holder.clone()),
        lease_duration_seconds: Some(i32::try_from(lease.duration.as_secs()).unwrap_or(i32::MAX)),
        lease_transitions: Some(lease.transitions),
        acquire_time: Some(MicroTime(lease.acquired)),
        renew_time: Some(MicroTime(lease.renewed)),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let lease = Lease {
            holder: "operator-1".to_owned(),
            duration: Duration::from_secs(15),
            transitions: 3,
            acquired: "2026-01-02T03:04:05.123456Z".parse().unwrap(),
            renewed: "2026-01-02T03:05:05Z".parse().unwrap(),
        };
        let mut resource = Resource { spec: Some(spec_of(&lease)), ..Resource::default() };
        resource.metadata.resource_version = Some("7".to_owned());
        let found = read(resource, Duration::from_mins(1));
        assert_eq!(found, Found { lease, version: "7".to_owned() });
    }

    #[test]
    fn a_lease_that_says_nothing_is_free_and_lasts_as_long_as_ours() {
        let found = read(Resource::default(), Duration::from_mins(1));
        assert_eq!((found.lease.holder.as_str(), found.lease.duration), ("", Duration::from_mins(1)));
    }

    #[test]
    fn a_conflict_and_a_deleted_lease_are_outdated_and_all_else_is_a_failure() {
        let error = |code: u16, existed: bool| {
            let status = serde_json::from_value(json!({ "code": code, "reason": "r", "message": "m" })).unwrap();
            write_error(&kube::Error::Api(Box::new(status)), existed)
        };
        assert_eq!(error(409, true), LeaseError::Outdated);
        assert_eq!(error(409, false), LeaseError::Outdated);
        assert_eq!(error(404, true), LeaseError::Outdated);
        for (code, existed) in [(404, false), (403, true), (503, true)] {
            assert_eq!(error(code, existed), LeaseError::Failed("m".to_owned()), "{code}");
        }
    }
}
