# What .ci/run and .ci/full share. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/arrayexec-ci.XXXXXX")
python=${PYTHON:-python3}
exec </dev/null
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1

# Nothing of an active environment may leak into the fresh ones.
if [[ -n ${VIRTUAL_ENV:-} ]]; then
    PATH=$(tr : '\n' <<<"$PATH" | grep -vxF "$VIRTUAL_ENV/bin" | paste -sd:)
fi
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME

begun=$SECONDS
stage_begun=$SECONDS
stage_name=
durations=()

close_stage() {
    [[ -z $stage_name ]] || durations+=("$(printf '%6d s  %s' $((SECONDS - stage_begun)) "$stage_name")")
    stage_name=
}

# stage NAME: closes the last stage and opens the next
stage() {
    close_stage
    stage_name=$1
    stage_begun=$SECONDS
    printf '\n======== %s (after %d s)\n' "$1" $((SECONDS - begun))
}

leave() {
    local code=$?
    local failed=$stage_name
    close_stage
    printf '\n======== durations\n'
    ((${#durations[@]} == 0)) || printf '%s\n' "${durations[@]}"
    rm -rf "$work"
    if ((code == 0)); then
        printf '======== all stages passed in %d s\n' $((SECONDS - begun))
    else
        printf '======== FAILED with exit code %d in: %s\n' "$code" "$failed"
    fi
    exit "$code"
}
trap leave EXIT
trap 'exit 130' INT TERM

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or newer is needed; set PYTHON to one" >&2
    exit 1
}
# README's commands say python3: let that be the Python that was asked for.
if [[ $python != python3 ]]; then
    mkdir -p "$work/bin"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$python")" >"$work/bin/python3"
    chmod +x "$work/bin/python3"
    PATH=$work/bin:$PATH
fi

# copy_tree DIRECTORY: the tracked files, as they are now
copy_tree() {
    mkdir -p "$1"
    if git -c safe.directory="$root" -C "$root" rev-parse --git-dir >/dev/null 2>&1; then
        git -c safe.directory="$root" -C "$root" ls-files -z |
            tar -C "$root" --null --files-from=- --ignore-failed-read -cf - | tar -C "$1" -xf -
    else
        tar -C "$root" --exclude=./.venv --exclude=./.git -cf - . | tar -C "$1" -xf -
    fi
}

# new_environment DIRECTORY REQUIREMENT...: a fresh environment with these packages
new_environment() {
    local where=$1
    shift
    "$python" -m venv "$where"
    timeout 900 "$where/bin/python" -m pip install --quiet "$@"
    "$where/bin/python" -m pip list
}
