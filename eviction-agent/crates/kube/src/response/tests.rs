use bytes::Bytes;
use http::header::RETRY_AFTER;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn response(status: u16, body: impl Into<Bytes>) -> Result<Response<Bytes>, RequestError> {
    Ok(Response::builder().status(status).body(body.into()).unwrap())
}

fn with_retry_after(
    retry_after: Option<u64>,
    response: Result<Response<Bytes>, RequestError>,
) -> Result<Response<Bytes>, RequestError> {
    let mut response = response?;
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    Ok(response)
}

fn status(code: u16, reason: &str, message: &str, details: &Value) -> Result<Response<Bytes>, RequestError> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": details, "code": code,
    });
    response(code, body.to_string())
}

fn evict(result: &Result<Response<Bytes>, RequestError>) -> ApiResult {
    interpret(ApiOperation::Eviction, result)
}

/// The responses of kube-apiserver 1.36.3.
#[test]
fn an_eviction_is_accepted() {
    let body = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}"#;
    assert_eq!(evict(&response(201, body)), ApiResult::Accepted);
    let pod = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web"},"status":{"phase":"Running"}}"#;
    assert_eq!(interpret(ApiOperation::Deletion, &response(200, pod)), ApiResult::Accepted);
}

#[test]
fn pdb_refusals_are_recognized_with_and_without_retry_after() {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let why = "The disruption budget web needs 1 healthy pods and has 1 currently";
    let details = json!({"causes": [{"reason": "DisruptionBudget", "message": why}]});
    assert_eq!(
        evict(&status(429, "TooManyRequests", message, &details)),
        ApiResult::PdbDenied { why: why.into() }
    );
    let why = "The disruption budget web is still being processed by the server.";
    let details = json!({
        "causes": [{"reason": "DisruptionBudget", "message": why}], "retryAfterSeconds": 10,
    });
    let early = with_retry_after(Some(10), status(429, "TooManyRequests", message, &details));
    assert_eq!(evict(&early), ApiResult::PdbDenied { why: why.into() });
    let two =
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(evict(&status(500, "", two, &Value::Null)), ApiResult::PdbDenied { why: two.into() });
    assert!(matches!(
        interpret(ApiOperation::Deletion, &status(500, "", two, &Value::Null)),
        ApiResult::Unknown { .. }
    ));
}

#[test]
fn throttling_is_distinguished_from_a_pdb_refusal() {
    let pause = |seconds| ApiResult::Throttled { pause: Duration::from_secs(seconds) };
    let plain = "Too many requests, please try again later.\n";
    let throttled =
        |retry_after, body: &str| evict(&with_retry_after(retry_after, response(429, body.to_owned())));
    assert_eq!(throttled(Some(7), plain), pause(7));
    assert_eq!(throttled(None, plain), pause(1));
    assert_eq!(throttled(Some(0), plain), pause(1), "not in a frenzy");
    assert_eq!(throttled(Some(u64::MAX), plain), pause(60), "not for ever");
    let details = json!({"retryAfterSeconds": 3, "causes": [{"reason": "Other"}]});
    assert_eq!(evict(&status(429, "TooManyRequests", "no", &details)), pause(3));
}

#[test]
fn throttling_is_distinguished_from_a_webhook_denial() {
    let message = "admission webhook \"virt-launcher-eviction-interceptor.kubevirt.io\" denied the request: Eviction triggered evacuation of VMI \"shop/vm\"";
    let denied = ApiResult::Rejected { status: 429, why: message.into() };
    let response = status(429, "TooManyRequests", message, &Value::Null);
    assert_eq!(evict(&response), denied);
    assert!(matches!(interpret(ApiOperation::CreateEvent, &response), ApiResult::Throttled { .. }));
}

#[test]
fn failure_of_a_webhook_is_distinguished_from_one_of_the_server() {
    let failed = "failed calling webhook \"guard.example.com\": failed to call webhook: Post \"https://guard.shop.svc:443/?timeout=10s\": no endpoints available for service \"guard\"";
    let denied = "admission webhook \"guard.example.com\" denied the request: no database";
    for message in [failed, denied] {
        let response =
            status(500, "InternalError", &format!("Internal error occurred: {message}"), &Value::Null);
        assert!(matches!(evict(&response), ApiResult::Rejected { status: 500, .. }), "{message}");
        assert!(matches!(interpret(ApiOperation::CreateEvent, &response), ApiResult::Unknown { .. }));
    }
}

#[test]
fn missing_pod_is_distinguished_from_a_missing_path() {
    let message = r#"pods "web" not found"#;
    let details = json!({"name": "web", "kind": "pods"});
    assert_eq!(evict(&status(404, "NotFound", message, &details)), ApiResult::Terminated);
    let unserved = evict(&response(404, "404 page not found\n"));
    assert!(matches!(unserved, ApiResult::Rejected { status: 404, .. }), "{unserved:?}");
}

#[test]
fn replaced_pod_is_distinguished_from_a_conflict() {
    let message = "Operation cannot be fulfilled on pods \"web\": the UID in the precondition (a) does not match the UID in record (b). The object might have been deleted and then recreated";
    assert_eq!(evict(&status(409, "Conflict", message, &Value::Null)), ApiResult::Replaced);
    let message = "Operation cannot be fulfilled on pods \"web\": the object has been modified";
    assert!(matches!(evict(&status(409, "Conflict", message, &Value::Null)), ApiResult::Rejected { .. }));
    let message = "Pod \"web\" is invalid: metadata.uid: Invalid value: \"a\": field is immutable";
    let patched = status(422, "Invalid", message, &Value::Null);
    assert_eq!(interpret(ApiOperation::Condition, &patched), ApiResult::Replaced);
    assert!(matches!(evict(&patched), ApiResult::Rejected { .. }));
}

#[test]
fn missing_permission_is_distinguished_from_a_webhook_denial() {
    let message = "pods \"web\" is forbidden: User \"agent\" cannot create resource \"pods/eviction\" in API group \"\" in the namespace \"shop\"";
    assert_eq!(
        evict(&status(403, "Forbidden", message, &Value::Null)),
        ApiResult::Forbidden { why: message.into() }
    );
    let message = "admission webhook \"guard\" denied the request: not today";
    let denied = ApiResult::Rejected { status: 403, why: message.into() };
    assert_eq!(evict(&status(403, "Forbidden", message, &Value::Null)), denied);
    assert!(matches!(
        evict(&status(401, "Unauthorized", "Unauthorized", &Value::Null)),
        ApiResult::Unauthorized { .. }
    ));
}

#[test]
fn requests_that_may_have_been_carried_out_are_unknown() {
    let unknown = |result| matches!(evict(&result), ApiResult::Unknown { .. });
    assert!(unknown(Err(RequestError::Deadline { after: Duration::from_secs(5) })));
    assert!(unknown(Err(RequestError::Broken("reset".into()))));
    assert!(unknown(Err(RequestError::TooLarge { limit: 1 })));
    assert!(unknown(status(500, "InternalError", "etcd", &Value::Null)));
    assert!(unknown(status(504, "Timeout", "etcd", &Value::Null)));
    assert!(unknown(response(503, "upstream")));
    assert!(unknown(response(200, "<html>login</html>")), "some other server");
    assert!(unknown(response(201, "")));
    assert!(unknown(response(201, r#"{"kind":"Status","status":"Failure"}"#)));
}

#[test]
fn each_readable_field_of_an_invalid_status_is_used() {
    let why = |body: &str| match evict(&response(400, body.to_owned())) {
        ApiResult::Rejected { status: 400, why } => why,
        other => panic!("{other:?}"),
    };
    for body in [
        r#"{"message": "no"}"#,
        r#"{"kind": "Error", "apiVersion": "v2", "message": "no"}"#,
        r#"{"kind": "Status", "apiVersion": "v1", "metadata": 5, "code": "400", "message": "no"}"#,
        r#"{"kind": "Status", "message": "no", "status": {}, "details": {"causes": 5}}"#,
    ] {
        assert_eq!(&*why(body), "no", "{body}");
    }
    for body in ["", "no", "[]", "5", r#"{"message": 5}"#] {
        assert_eq!(&*why(body), "status 400 without a reason", "{body}");
    }
    let details =
        r#"{"causes": [5, {"reason": "DisruptionBudget", "message": "b"}], "retryAfterSeconds": 1e99}"#;
    let refused = evict(&response(429, format!(r#"{{"code": "429", "details": {details}}}"#)));
    assert_eq!(refused, ApiResult::PdbDenied { why: "b".into() });
}

#[test]
fn failed_connection_means_not_sent() {
    let (address, source) = ("127.0.0.1:6443".to_owned(), "connection refused".into());
    let refused = RequestError::Connect { address, source };
    let ApiResult::NotSent { why } = evict(&Err(refused)) else { panic!("not sent") };
    assert_eq!(&*why, "connect to 127.0.0.1:6443: connection refused");
}

#[test]
fn texts_are_limited_to_one_line_and_a_maximum_length() {
    let long = format!("a\nb\u{1b}[31m{}", "ä".repeat(1000));
    let ApiResult::Rejected { why, .. } = evict(&status(400, "BadRequest", &long, &Value::Null)) else {
        panic!("rejected")
    };
    assert!(why.starts_with("a b [31mä") && why.ends_with('…') && why.len() < 520, "{why}");
}

/// Whether a request may have been carried out decides whether the eviction of a pod may be requested again.
fn may_have_been_carried_out(result: &ApiResult) -> bool {
    matches!(
        result,
        ApiResult::Accepted | ApiResult::Unknown { .. } | ApiResult::Terminated | ApiResult::Replaced
    )
}

proptest! {
    #[test]
    fn any_response_has_a_consistent_result(
        code in 100..1000_u16,
        retry_after in proptest::option::of(any::<u64>()),
        body in prop_oneof![
            any::<Vec<u8>>(),
            "\\{\"kind\":\"(Status|Pod|X)\",\"(status|reason|message|details|code)\":(1|\"[a-zA-Z ]{0,9}\"|null|\\{\\}|\\[\\])[}]?".prop_map(String::into_bytes),
        ],
    ) {
        for operation in [ApiOperation::Eviction, ApiOperation::Deletion, ApiOperation::Condition, ApiOperation::GetPod] {
            let result = interpret(operation, &with_retry_after(retry_after, response(code, body.clone())));
            // Success requires an object in the body, and a server failure is never a result of our own.
            if result == ApiResult::Accepted {
                prop_assert!((200..300).contains(&code) && serde_json::from_slice::<Value>(&body).is_ok());
            }
            prop_assert_eq!((200..300).contains(&code) || (500..600).contains(&code), may_have_been_carried_out(&result) && !matches!(result, ApiResult::Terminated | ApiResult::Replaced));
        }
    }
}
