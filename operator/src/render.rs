//! The objects of a sandbox. No part of a pod's spec depends on its Sandbox, only on the template and on the name of the claim.

use crate::{
    decide::Act,
    validate::{Identity, PodSource, ValidSandbox},
};
use crds::{
    ChildName, Quantity, ResourceList, Sandbox, Toleration, TolerationEffect, TolerationOperator, fallback, keys,
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

/// The objects of this act; none for acts that make nothing.
pub fn prepare(act: &Act, sandbox: &ValidSandbox, sandboxd_image: &str) -> Option<Prepared> {
    match act {
        Act::Start { new_claim } => {
            let source = sandbox.source.as_ref().ok()?;
            Some(Prepared {
                claim: new_claim.then(|| claim(sandbox)),
                pod: pod(&sandbox.identity, &sandbox.child, source, sandboxd_image),
            })
        }
        Act::Nothing | Act::DeletePod { .. } | Act::DeleteSandbox => None,
    }
}

fn metadata(identity: &Identity, child: &ChildName) -> ObjectMeta {
    let labels = [
        (keys::NAME, keys::NAME_VALUE),
        (keys::MANAGED_BY, keys::MANAGED_BY_VALUE),
        (keys::SANDBOX_UID, &identity.uid),
    ];
    ObjectMeta {
        name: Some(child.to_string()),
        namespace: Some(identity.namespace.clone()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        annotations: Some([(keys::SANDBOX.to_owned(), identity.name.clone())].into()),
        owner_references: Some(vec![OwnerReference {
            api_version: Sandbox::api_version(&()).into_owned(),
            kind: Sandbox::kind(&()).into_owned(),
            name: identity.name.clone(),
            uid: identity.uid.clone(),
            controller: Some(true),
            // Blocking would need a right on the Sandbox's finalizers where the cluster checks that.
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}

fn claim(sandbox: &ValidSandbox) -> PersistentVolumeClaim {
    PersistentVolumeClaim {
        metadata: metadata(&sandbox.identity, &sandbox.child),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: sandbox.storage_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), kube_quantity(&sandbox.workspace_size))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

fn pod(identity: &Identity, child: &ChildName, source: &PodSource, sandboxd_image: &str) -> Pod {
    let mut metadata = metadata(identity, child);
    metadata.labels.get_or_insert_default().insert(keys::TEMPLATE.to_owned(), source.template.clone());
    metadata.annotations.get_or_insert_default().insert(keys::TEMPLATE_HASH.to_owned(), source.hash.clone());
    Pod { metadata, spec: Some(pod_spec(source, child, sandboxd_image)), status: None }
}

/// The pod of this template on this claim.
fn pod_spec(source: &PodSource, claim: &ChildName, sandboxd_image: &str) -> PodSpec {
    let template = &source.spec;
    let user = i64::from(layout::USER);
    PodSpec {
        init_containers: Some(vec![init_container(sandboxd_image)]),
        containers: vec![main_container(source), files_container(sandboxd_image)],
        volumes: Some(volumes(claim)),
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

fn volumes(claim: &ChildName) -> Vec<Volume> {
    let empty = |name: &str, size: &str, medium: Option<&str>| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            size_limit: Some(KubeQuantity(size.to_owned())),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    };
    vec![
        Volume {
            name: WORKSPACE_VOLUME.to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.to_string(),
                read_only: None,
            }),
            ..Volume::default()
        },
        empty(BINARY_VOLUME, BINARY_SIZE, None),
        empty(HOME_VOLUME, HOME_SIZE, None),
        empty(SHM_VOLUME, SHM_SIZE, Some("Memory")),
        empty(MAIN_RUN_VOLUME, RUN_SIZE, None),
        empty(FILES_RUN_VOLUME, RUN_SIZE, None),
    ]
}

fn init_container(image: &str) -> Container {
    let command = [IMAGE_BINARY, "init", "--binary-to", layout::BINARY, "--claim", layout::CLAIM];
    Container {
        volume_mounts: Some(vec![
            mount(BINARY_VOLUME, layout::BINARY_DIR, false),
            mount(WORKSPACE_VOLUME, layout::CLAIM, false),
        ]),
        resources: Some(fixed_resources("500m", "64Mi", "64Mi")),
        // Its last words are what a failed start is reported with.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..container(INIT, image, &command)
    }
}

fn main_container(source: &PodSource) -> Container {
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
        sub_path: Some(folder.claim.to_owned()),
        ..mount(WORKSPACE_VOLUME, folder.path, !folder.writable)
    }));
    mounts.extend([
        mount(SHM_VOLUME, "/dev/shm", false),
        mount(MAIN_RUN_VOLUME, layout::SOCKET_DIR, false),
        mount(BINARY_VOLUME, layout::BINARY_DIR, true),
    ]);
    Container {
        env: Some(env.collect()).filter(|list: &Vec<_>| !list.is_empty()),
        volume_mounts: Some(mounts),
        resources: Some(main_resources(source)),
        working_dir: Some(layout::WORKSPACE.to_owned()),
        ..container(MAIN, &template.image, &[layout::BINARY, "serve", "--half", "main"])
    }
}

fn files_container(image: &str) -> Container {
    let mounts = vec![
        mount(WORKSPACE_VOLUME, layout::CLAIM, false),
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

fn container(name: &str, image: &str, command: &[&str]) -> Container {
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
fn fixed_resources(cpu: &str, memory: &str, storage: &str) -> ResourceRequirements {
    let amounts = |cpu: &str, memory: &str, storage: &str| -> BTreeMap<String, KubeQuantity> {
        [("cpu", cpu), ("memory", memory), ("ephemeral-storage", storage)]
            .map(|(name, amount)| (name.to_owned(), KubeQuantity(amount.to_owned())))
            .into()
    };
    ResourceRequirements {
        limits: Some(amounts(cpu, memory, storage)),
        requests: Some(amounts("10m", "16Mi", "16Mi")),
        claims: None,
    }
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
