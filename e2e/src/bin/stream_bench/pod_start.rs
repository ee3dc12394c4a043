//! How long a pod takes to be Ready: beside the same pod with `sleep` in the place of everything of ours, and with another image.

use crate::{
    sandbox::Subject,
    say,
    table::{Row, table},
    timed,
};
use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ObjectMeta, PostParams},
    runtime::wait::{await_condition, conditions::is_deleted},
};

/// Pods of each kind; they alternate.
const ROUNDS: usize = 10;

/// `full_image` is the image to compare the sandbox's own with, which is the slim one.
pub(crate) async fn measure(subject: &Subject, full_image: Option<&str>) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(Client::try_default().await?, subject.namespace());
    let like = pods.get(&subject.pod().await?).await?;
    let mut asleep = like.clone();
    put_to_sleep(&mut asleep).context("the pod has no containers")?;
    let mut kinds =
        vec![("with sleep in its place", asleep, Vec::new()), ("a sandbox's pod", like.clone(), Vec::new())];
    if let Some(image) = full_image {
        let mut full = like;
        main_of(&mut full).context("the pod has no container main")?.image = Some(image.to_owned());
        // Pulled beforehand: what is measured is the start of an image that the node has.
        let pod = copy_of(&full, "start-bench-pull");
        Box::pin(started(&pods, &pod)).await?;
        removed(&pods, &pod.name_any()).await?;
        kinds.push(("with the full image", full, Vec::new()));
    }
    for round in 0..ROUNDS {
        for (place, (_, like, times)) in kinds.iter_mut().enumerate() {
            let pod = copy_of(like, &format!("start-bench-{place}-{round}"));
            times.push(timed(Box::pin(started(&pods, &pod))).await?);
            removed(&pods, &pod.name_any()).await?;
        }
    }
    let rows: Vec<Row> = kinds.into_iter().map(|(name, _, times)| Row::new(name, times)).collect();
    say(&table("a pod until it is Ready", &["x sleep", "x a sandbox's"], &[0, 1], &rows)?)
}

fn main_of(pod: &mut Pod) -> Option<&mut Container> {
    pod.spec.as_mut()?.containers.iter_mut().find(|container| container.name == "main")
}

/// A pod of its own, with the same claim.
fn copy_of(pod: &Pod, name: &str) -> Pod {
    let mut spec = pod.spec.clone().unwrap_or_default();
    (spec.node_name, spec.priority) = (None, None);
    Pod {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: Some(spec),
        status: None,
    }
}

fn put_to_sleep(pod: &mut Pod) -> Option<()> {
    let image = main_of(pod)?.image.clone();
    let spec = pod.spec.as_mut()?;
    let change = |container: &mut Container, command: &[&str]| {
        container.image.clone_from(&image);
        container.command = Some(command.iter().map(|word| (*word).to_owned()).collect());
        container.args = None;
    };
    spec.init_containers.iter_mut().flatten().for_each(|container| change(container, &["true"]));
    spec.containers.iter_mut().for_each(|container| change(container, &["sleep", "3600"]));
    Some(())
}

async fn started(pods: &Api<Pod>, pod: &Pod) -> anyhow::Result<()> {
    pods.create(&PostParams::default(), pod).await?;
    await_condition(pods.clone(), &pod.name_any(), is_ready).await?;
    Ok(())
}

fn is_ready(pod: Option<&Pod>) -> bool {
    let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn removed(pods: &Api<Pod>, name: &str) -> anyhow::Result<()> {
    let deleted = pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    let uid = deleted.left().and_then(|pod| pod.uid()).unwrap_or_default();
    await_condition(pods.clone(), name, is_deleted(&uid)).await?;
    Ok(())
}
