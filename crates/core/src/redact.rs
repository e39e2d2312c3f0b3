//! What must not be shown: passwords and signatures inside URLs.

/// Query parameters that grant access by themselves (signed URLs of the large object stores, plain tokens).
const SECRET_PARAMETERS: &[&str] = &[
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
    "x-goog-signature",
    "x-goog-credential",
    "sig",
    "signature",
    "token",
    "access_token",
    "api_key",
    "apikey",
    "key",
    "password",
];

/// `url` with the password of its user part and the values of signing parameters replaced by `***`. What is not a URL
/// (a path) comes back as it is.
pub fn url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (before_query, query) = match rest.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (rest, None),
    };
    let authority_end = before_query.find('/').unwrap_or(before_query.len());
    let (authority, path) = before_query.split_at(authority_end);
    let mut shown = format!("{scheme}://");
    match authority.rsplit_once('@') {
        Some((user, host)) => {
            let name = user.split(':').next().unwrap_or_default();
            let password = if user.contains(':') { ":***" } else { "" };
            shown.push_str(&format!("{name}{password}@{host}"));
        }
        None => shown.push_str(authority),
    }
    shown.push_str(path);
    if let Some(query) = query {
        let parameters: Vec<String> = query
            .split('&')
            .map(|parameter| match parameter.split_once('=') {
                Some((name, _)) if SECRET_PARAMETERS.contains(&name.to_ascii_lowercase().as_str()) => {
                    format!("{name}=***")
                }
                _ => parameter.to_owned(),
            })
            .collect();
        shown.push('?');
        shown.push_str(&parameters.join("&"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn passwords_and_signatures_are_left_out() {
        assert_eq!(url("https://me:secret@host/a?b=1"), "https://me:***@host/a?b=1");
        assert_eq!(url("https://host/a?X-Amz-Signature=abc&b=1"), "https://host/a?X-Amz-Signature=***&b=1");
        assert_eq!(url("https://host/a@b"), "https://host/a@b");
        assert_eq!(url("data/a@b:c.csv"), "data/a@b:c.csv");
    }
}
