//! The objects of a sandbox. No part of a pod's spec depends on its Sandbox, only on the template and on the name of the claim.

use crate::{
    decide::Act,
    validate::{Identity, PodSource, ValidSandbox, WantedWorkspace},
};
use crds::{
    ChildName, Quantity, ResourceList, Sandbox, SandboxTemplateSpec, Toleration, TolerationEffect, TolerationOperator,
    WhenDeleted, fallback, keys,
};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EmptyDirVolumeSource, EnvVar, LocalObjectReference, PersistentVolumeClaim,
        PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec,
        ResourceRequirements, SeccompProfile, SecurityContext, Toleration as PodToleration, Volume, VolumeMount,
        VolumeResourceRequirements,
    },
    apimachinery::pkg::{
        api::resource::Quantity as KubeQuantity,
        apis::meta::v1::{ObjectMeta, OwnerReference},
    },
};
use kube::Resource;
use sandboxd_protocol::layout;
use std::{cmp::Ordering, collections::BTreeMap};

/// The container that runs the template's image.
pub const MAIN: &str = "main";
/// The container that serves the files.
pub const FILES: &str = "files";
const INIT: &str = "init";
/// The binary in our own image.
const IMAGE_BINARY: &str = "/sandboxd";

const WORKSPACE_VOLUME: &str = "workspace";
const BINARY_VOLUME: &str = "sandboxd";
const HOME_VOLUME: &str = "home";
const SHM_VOLUME: &str = "shm";
const MAIN_RUN_VOLUME: &str = "run-main";
const FILES_RUN_VOLUME: &str = "run-files";

/// A copy of the binary, a few MiB.
const BINARY_SIZE: &str = "32Mi";
/// HOME and caches; counts against the limit of local storage.
const HOME_SIZE: &str = "1Gi";
/// Shared memory; counts against the memory limit.
const SHM_SIZE: &str = "64Mi";
/// The socket, and finished results that are kept on disk.
const RUN_SIZE: &str = "128Mi";
/// Time between SIGTERM and SIGKILL; sandboxd is gone within one second.
const GRACE_SECONDS: i64 = 10;

/// What is made in a pass, ready to be sent.
pub struct Prepared {
    /// The claim, where there is none yet.
    pub claim: Option<PersistentVolumeClaim>,
    /// The pod.
    pub pod: Pod,
}

/// The claim that a pod mounts, and which part of it.
#[derive(Clone, Copy)]
struct MountedClaim<'a> {
    name: &'a str,
    sub_path: Option<&'a str>,
}

impl MountedClaim<'_> {
    /// A folder of the workspace, as a path on the claim.
    fn folder(self, folder: &str) -> String {
        self.sub_path.map_or_else(|| folder.to_owned(), |sub_path| format!("{sub_path}/{folder}"))
    }
}

/// The objects of this act; none for acts that make nothing.
pub fn prepare(act: &Act, sandbox: &ValidSandbox, claim: &str, sandboxd_image: &str) -> Option<Prepared> {
    match act {
        Act::Start { new_claim } => {
            let source = sandbox.source.as_ref().ok()?;
            let sub_path = match &sandbox.workspace {
                WantedWorkspace::Existing(existing) => existing.sub_path.as_deref(),
                WantedWorkspace::Own { .. } => None,
            };
            Some(Prepared {
                claim: if *new_claim { new_claim_of(sandbox) } else { None },
                pod: pod(
                    &sandbox.identity,
                    &sandbox.child,
                    source,
                    MountedClaim { name: claim, sub_path },
                    sandboxd_image,
                ),
            })
        }
        Act::Nothing | Act::TakeBack(_) | Act::Grow(..) | Act::DeletePod { .. } | Act::DeleteSandbox => None,
    }
}

/// A pod of this template that belongs to nobody, to ask the API server whether it would take one.
pub fn template_pod(namespace: &str, source: &PodSource, sandboxd_image: &str) -> Pod {
    let name = "codeexec-template-trial";
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..pod_metadata(source, &[], &[])
    };
    let claim = MountedClaim { name, sub_path: None };
    Pod { metadata, spec: Some(pod_spec(source, claim, sandboxd_image)), status: None }
}

/// Labels or annotations.
pub(crate) fn owned(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn labels(identity: &Identity) -> [(&str, &str); 3] {
    [(keys::NAME, keys::NAME_VALUE), (keys::MANAGED_BY, keys::MANAGED_BY_VALUE), (keys::SANDBOX_UID, &identity.uid)]
}

fn owner_of(identity: &Identity) -> OwnerReference {
    OwnerReference {
        api_version: Sandbox::api_version(&()).into_owned(),
        kind: Sandbox::kind(&()).into_owned(),
        name: identity.name.clone(),
        uid: identity.uid.clone(),
        controller: Some(true),
        // Blocking would need a right on the Sandbox's finalizers where the cluster checks that.
        block_owner_deletion: None,
    }
}

/// A claim that is kept has no owner, so that nothing that deletes the Sandbox can take it along.
fn new_claim_of(sandbox: &ValidSandbox) -> Option<PersistentVolumeClaim> {
    let WantedWorkspace::Own { size, class, modes, when_deleted } = &sandbox.workspace else { return None };
    let identity = &sandbox.identity;
    let tenant = sandbox.owner.as_deref().map(|owner| (keys::OWNER, owner));
    let annotations: Vec<_> = [(keys::SANDBOX, identity.name.as_str())].into_iter().chain(tenant).collect();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(sandbox.child.to_string()),
            namespace: Some(identity.namespace.clone()),
            labels: Some(owned(&labels(identity))),
            annotations: Some(owned(&annotations)),
            owner_references: match when_deleted {
                WhenDeleted::Delete => Some(vec![owner_of(identity)]),
                WhenDeleted::Retain => None,
            },
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(modes.iter().map(|mode| mode.as_str().to_owned()).collect()),
            storage_class_name: class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), kube_quantity(size))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}

/// Labels and annotations: the template's, and over them ours.
fn pod_metadata(source: &PodSource, labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> ObjectMeta {
    let theirs = source.spec.pod_metadata.clone().unwrap_or_default();
    let (mut all_labels, mut all_annotations) = (theirs.labels, theirs.annotations);
    all_labels.retain(|key, _| !key.starts_with(keys::PREFIX));
    all_annotations.retain(|key, _| !key.starts_with(keys::PREFIX));
    all_labels.extend(owned(labels));
    all_labels.insert(keys::TEMPLATE.to_owned(), source.template.clone());
    all_annotations.extend(owned(annotations));
    all_annotations.insert(keys::TEMPLATE_HASH.to_owned(), source.hash.clone());
    ObjectMeta { labels: Some(all_labels), annotations: Some(all_annotations), ..ObjectMeta::default() }
}

fn pod(
    identity: &Identity,
    child: &ChildName,
    source: &PodSource,
    claim: MountedClaim<'_>,
    sandboxd_image: &str,
) -> Pod {
    let metadata = ObjectMeta {
        name: Some(child.to_string()),
        namespace: Some(identity.namespace.clone()),
        owner_references: Some(vec![owner_of(identity)]),
        ..pod_metadata(source, &labels(identity), &[(keys::SANDBOX, &identity.name)])
    };
    Pod { metadata, spec: Some(pod_spec(source, claim, sandboxd_image)), status: None }
}

/// The pod of this template on this claim.
fn pod_spec(source: &PodSource, claim: MountedClaim<'_>, sandboxd_image: &str) -> PodSpec {
    let template = &source.spec;
    let user = i64::from(layout::USER);
    PodSpec {
        init_containers: Some(vec![init_container(sandboxd_image, claim)]),
        containers: vec![main_container(source, claim), files_container(sandboxd_image, claim)],
        volumes: Some(volumes(template, claim)),
        hostname: Some(layout::HOSTNAME.to_owned()),
        restart_policy: Some("Always".to_owned()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(user),
            run_as_group: Some(user),
            fs_group: Some(user),
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        runtime_class_name: template.runtime_class_name.clone(),
        host_users: template.host_users,
        priority_class_name: template.priority_class_name.clone(),
        affinity: template.affinity.clone(),
        topology_spread_constraints: Some(template.topology_spread_constraints.clone()).filter(|list| !list.is_empty()),
        node_selector: Some(template.node_selector.clone()).filter(|selector| !selector.is_empty()),
        tolerations: Some(template.tolerations.iter().map(toleration).collect())
            .filter(|list: &Vec<_>| !list.is_empty()),
        image_pull_secrets: Some(
            template
                .image_pull_secrets
                .iter()
                .map(|secret| LocalObjectReference { name: secret.name.clone() })
                .collect(),
        )
        .filter(|list: &Vec<_>| !list.is_empty()),
        ..PodSpec::default()
    }
}

fn volumes(template: &SandboxTemplateSpec, claim: MountedClaim<'_>) -> Vec<Volume> {
    let existing = |name: String, claim: &str, read_only: bool| Volume {
        name,
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            read_only: read_only.then_some(true),
        }),
        ..Volume::default()
    };
    let empty = |name: &str, size: &str, medium: Option<&str>| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            size_limit: Some(KubeQuantity(size.to_owned())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    };
    let own = vec![
        existing(WORKSPACE_VOLUME.to_owned(), claim.name, false),
        empty(BINARY_VOLUME, BINARY_SIZE, None),
        empty(HOME_VOLUME, HOME_SIZE, None),
        empty(SHM_VOLUME, SHM_SIZE, Some("Memory")),
        empty(MAIN_RUN_VOLUME, RUN_SIZE, None),
        empty(FILES_RUN_VOLUME, RUN_SIZE, None),
    ];
    let mounts = template.mounts.iter().enumerate();
    own.into_iter()
        .chain(mounts.map(|(n, mount)| existing(mount_volume(n), &mount.claim_name, mount.read_only)))
        .collect()
}

/// Name of the volume of the template's n-th mount.
fn mount_volume(n: usize) -> String {
    format!("mount-{n}")
}

fn init_container(image: &str, claim: MountedClaim<'_>) -> Container {
    let command = [IMAGE_BINARY, "init", "--binary-to", layout::BINARY, "--claim", layout::CLAIM];
    Container {
        volume_mounts: Some(vec![mount(BINARY_VOLUME, layout::BINARY_DIR, false), whole_claim(claim)]),
        resources: Some(fixed_resources("500m", "64Mi", "64Mi")),
        // Its last words are what a failed start is reported with.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..container(INIT, image, &command)
    }
}

/// The claim as our own containers see it.
fn whole_claim(claim: MountedClaim<'_>) -> VolumeMount {
    VolumeMount { sub_path: claim.sub_path.map(str::to_owned), ..mount(WORKSPACE_VOLUME, layout::CLAIM, false) }
}

fn main_container(source: &PodSource, claim: MountedClaim<'_>) -> Container {
    let template = &source.spec;
    let env = template.env.iter().map(|variable| EnvVar {
        name: variable.name.clone(),
        // `$(NAME)` is literal too: a doubled dollar is how Kubernetes writes one.
        value: Some(variable.value.replace('$', "$$")),
        value_from: None,
    });
    // HOME comes before the workspace inside it.
    let mut mounts = vec![mount(HOME_VOLUME, layout::HOME, false)];
    mounts.extend(layout::FOLDERS.iter().map(|folder| VolumeMount {
        sub_path: Some(claim.folder(folder.claim)),
        ..mount(WORKSPACE_VOLUME, folder.path, !folder.writable)
    }));
    mounts.extend([
        mount(SHM_VOLUME, "/dev/shm", false),
        mount(MAIN_RUN_VOLUME, layout::SOCKET_DIR, false),
        mount(BINARY_VOLUME, layout::BINARY_DIR, true),
    ]);
    mounts.extend(template.mounts.iter().enumerate().map(|(n, wanted)| VolumeMount {
        sub_path: wanted.sub_path.clone(),
        ..mount(&mount_volume(n), &wanted.mount_path, wanted.read_only)
    }));
    Container {
        env: Some(env.collect()).filter(|list: &Vec<_>| !list.is_empty()),
        volume_mounts: Some(mounts),
        resources: Some(main_resources(source)),
        working_dir: Some(layout::WORKSPACE.to_owned()),
        ..container(MAIN, &template.image, &[layout::BINARY, "serve", "--half", "main"])
    }
}

fn files_container(image: &str, claim: MountedClaim<'_>) -> Container {
    let mounts = vec![
        whole_claim(claim),
        mount(FILES_RUN_VOLUME, layout::SOCKET_DIR, false),
        mount(BINARY_VOLUME, layout::BINARY_DIR, true),
    ];
    let command = [layout::BINARY, "serve", "--half", "files", "--claim", layout::CLAIM];
    Container {
        volume_mounts: Some(mounts),
        resources: Some(fixed_resources("500m", "256Mi", "256Mi")),
        ..container(FILES, image, &command)
    }
}

/// A container as Pod Security `restricted` wants it, with a read-only root file system.
pub(crate) fn container(name: &str, image: &str, command: &[&str]) -> Container {
    Container {
        name: name.to_owned(),
        image: Some(image.to_owned()),
        command: Some(command.iter().map(|&part| part.to_owned()).collect()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn kube_quantity(quantity: &Quantity) -> KubeQuantity {
    KubeQuantity(quantity.as_str().to_owned())
}

/// Our own containers: limits for the worst case, next to nothing asked of the node.
pub(crate) fn fixed_resources(cpu: &str, memory: &str, storage: &str) -> ResourceRequirements {
    ResourceRequirements {
        limits: Some(amounts(cpu, memory, storage)),
        requests: Some(amounts("10m", "16Mi", "16Mi")),
        claims: None,
    }
}

fn amounts(cpu: &str, memory: &str, storage: &str) -> BTreeMap<String, KubeQuantity> {
    [("cpu", cpu), ("memory", memory), ("ephemeral-storage", storage)]
        .map(|(name, amount)| (name.to_owned(), KubeQuantity(amount.to_owned())))
        .into()
}

/// Limits are always set. A request is what the template says; else, when the template sets the limit, Kubernetes takes the limit
/// for the request, as everywhere; else the fallback.
fn main_resources(source: &PodSource) -> ResourceRequirements {
    let resources = source.spec.resources.clone().unwrap_or_default();
    let (limits, requests) = (resources.limits.unwrap_or_default(), resources.requests.unwrap_or_default());
    let pick = |list: &ResourceList| [list.cpu.clone(), list.memory.clone(), list.ephemeral_storage.clone()];
    let fallbacks = [
        ("cpu", fallback::CPU_LIMIT, fallback::CPU_REQUEST),
        ("memory", fallback::MEMORY_LIMIT, fallback::MEMORY_REQUEST),
        ("ephemeral-storage", fallback::EPHEMERAL_STORAGE_LIMIT, fallback::EPHEMERAL_STORAGE_REQUEST),
    ];
    let mut rendered = ResourceRequirements::default();
    for ((limit, request), (name, limit_fallback, request_fallback)) in
        pick(&limits).into_iter().zip(pick(&requests)).zip(fallbacks)
    {
        let (limit, request) = match (limit, request) {
            (Some(limit), request) => (kube_quantity(&limit), request.as_ref().map(kube_quantity)),
            (None, Some(request)) => (larger(&request, limit_fallback), Some(kube_quantity(&request))),
            (None, None) => (KubeQuantity(limit_fallback.to_owned()), Some(KubeQuantity(request_fallback.to_owned()))),
        };
        rendered.limits.get_or_insert_default().insert(name.to_owned(), limit);
        if let Some(request) = request {
            rendered.requests.get_or_insert_default().insert(name.to_owned(), request);
        }
    }
    rendered
}

/// The fallback limit, or the request where that is more.
fn larger(request: &Quantity, limit: &str) -> KubeQuantity {
    match limit.parse::<Quantity>().map(|limit| request.compare(&limit)) {
        Ok(Ordering::Less | Ordering::Equal) => KubeQuantity(limit.to_owned()),
        Ok(Ordering::Greater) | Err(_) => kube_quantity(request),
    }
}

fn toleration(toleration: &Toleration) -> PodToleration {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    let operator = operator.map(|operator| match operator {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    });
    let effect = effect.map(|effect| match effect {
        TolerationEffect::NoSchedule => "NoSchedule",
        TolerationEffect::PreferNoSchedule => "PreferNoSchedule",
        TolerationEffect::NoExecute => "NoExecute",
    });
    PodToleration {
        key: key.clone(),
        operator: operator.map(str::to_owned),
        value: value.clone(),
        effect: effect.map(str::to_owned),
        toleration_seconds: *toleration_seconds,
    }
}
