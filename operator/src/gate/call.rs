//! What a request to the API server is, from its method and path.

use http::{Method, StatusCode, Uri};

/// A request, as access rules name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiCall {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// Plural name of the resource, with its subresource: `pods`, `sandboxes/status`. `other` for what is no resource.
    pub resource: String,
}

/// Reads what a request does.
pub fn api_call(method: &Method, uri: &Uri) -> ApiCall {
    let Some(Target { resource, named }) = target(uri.path()) else {
        return ApiCall { verb: plain_verb(method, true), resource: "other".to_owned() };
    };
    let watches =
        || uri.query().is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")));
    let verb = match plain_verb(method, named) {
        "get" | "list" if watches() => "watch",
        verb => verb,
    };
    ApiCall { verb, resource }
}

/// Kind of an answer: few enough values for a label, with the refusals that mean something of their own.
pub fn outcome_class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        403 => "403",
        404 => "404",
        409 => "409",
        429 => "429",
        200..300 => "2xx",
        400..500 => "4xx",
        500..600 => "5xx",
        _ => "other",
    }
}

fn plain_verb(method: &Method, named: bool) -> &'static str {
    match (method.as_str(), named) {
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        (_, _) => "other",
    }
}

struct Target {
    resource: String,
    named: bool,
}

/// What a path points at, if it is a resource: `/api/VERSION/...` or `/apis/GROUP/VERSION/...`.
fn target(path: &str) -> Option<Target> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    match parts.next()? {
        "api" => parts.next()?,
        "apis" => parts.nth(1)?,
        _ => return None,
    };
    let parts: Vec<&str> = parts.collect();
    let parts = match parts.as_slice() {
        // A namespace is a resource too, and these two are its own subresources.
        ["namespaces", _, "status" | "finalize"] => parts.as_slice(),
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    match parts {
        [] => None,
        [resource] => Some(Target { resource: (*resource).to_owned(), named: false }),
        [resource, _] => Some(Target { resource: (*resource).to_owned(), named: true }),
        [resource, _, subresource, ..] => Some(Target { resource: format!("{resource}/{subresource}"), named: true }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_named_as_access_rules_name_it() {
        let rows = [
            (Method::GET, "/api/v1/namespaces/a/pods?limit=500", "list", "pods"),
            (Method::GET, "/api/v1/namespaces/a/pods?&watch=true&timeoutSeconds=290", "watch", "pods"),
            (Method::GET, "/api/v1/pods", "list", "pods"),
            (Method::GET, "/api/v1/namespaces/a/pods/watch", "get", "pods"),
            (Method::GET, "/api/v1/namespaces/a", "get", "namespaces"),
            (Method::GET, "/api/v1/namespaces", "list", "namespaces"),
            (Method::GET, "/api/v1/nodes/n", "get", "nodes"),
            (Method::PUT, "/api/v1/namespaces/a/finalize", "update", "namespaces/finalize"),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events?", "create", "events"),
            (
                Method::PATCH,
                "/apis/codeexec.dev/v1alpha1/namespaces/a/sandboxes/s/status?",
                "patch",
                "sandboxes/status",
            ),
            (Method::PATCH, "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", "patch", "leases"),
            (Method::DELETE, "/api/v1/namespaces/a/pods/p", "delete", "pods"),
            (Method::DELETE, "/api/v1/namespaces/a/pods", "deletecollection", "pods"),
            (Method::GET, "/apis/storage.k8s.io/v1/storageclasses/fast", "get", "storageclasses"),
            (Method::GET, "/version", "get", "other"),
            (Method::GET, "/apis/codeexec.dev/v1alpha1", "get", "other"),
            (Method::OPTIONS, "/api/v1/pods", "other", "pods"),
        ];
        for (method, uri, verb, resource) in rows {
            let call = api_call(&method, &uri.parse().unwrap());
            assert_eq!((call.verb, call.resource.as_str()), (verb, resource), "{method} {uri}");
        }
    }

    #[test]
    fn refusals_that_mean_something_have_a_class_of_their_own() {
        let rows = [(200, "2xx"), (201, "2xx"), (409, "409"), (403, "403"), (422, "4xx"), (429, "429"), (503, "5xx")];
        for (code, class) in rows {
            assert_eq!(outcome_class(StatusCode::from_u16(code).unwrap()), class);
        }
    }
}
