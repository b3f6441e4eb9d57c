#!/usr/bin/env bash
# What Bazel asks of a build's source: its commit, for a bundle. "unknown" outside of a git checkout.
commit=$(git rev-parse HEAD 2>/dev/null) || commit=unknown
[[ -z $(git status --porcelain 2>/dev/null) ]] || commit+=-changed
echo "STABLE_COMMIT $commit"
