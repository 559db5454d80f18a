# Run a command with the folders, user and process id of a container.
# Usage, in new namespaces: container.sh ROOT CONTEXT COMMAND [NAME=VALUE]..., with the variables
#   BASE   installation of Python, visible at its own path
#   VENV   virtual environment, visible as /venv
#   SHOWN  further folders, visible at their own paths, separated by colons
#   LAYERS folders with /usr and /opt, the upper one first, separated by colons: what is written goes
#          there; the others and this machine's /usr are below it; empty without an image
#   BUILD  1: run as root in the context, as a RUN line of its Dockerfile does
# Without an image /usr/bin/python3 is that of VENV, as in Truss's own image.
set -e
root=$1 context=$2 command=$3
shift 3
mount -t tmpfs -o mode=755 tmpfs "$root"
for name in bin dev etc home/app lib lib64 opt packages proc sbin sys tmp usr var venv workspace app; do
  mkdir -p "$root/$(dirname "$name")"
  if [ -L "/$name" ]; then
    cp -P "/$name" "$root/"
    continue
  fi
  mkdir "$root/$name"
  case $name in
    dev | etc | lib | lib64 | sbin | sys | var | bin)
      if [ -d "/$name" ]; then mount --rbind "/$name" "$root/$name"; fi ;;
    proc) mount -t proc proc "$root/proc" ;;
    tmp | workspace | home/app) # all that the manifests let it write to
      mount -t tmpfs -o mode=1777 tmpfs "$root/$name" ;;
    opt | usr)
      if [ -z "$LAYERS" ]; then
        mount --rbind "/$name" "$root/$name"
        continue
      fi
      IFS=: read -ra layers <<<"$LAYERS"
      lowest=/usr
      if [ "$name" = opt ]; then lowest=${layers[0]}/empty; fi
      mkdir -p "${layers[0]}"/{empty,"$name","work/$name"}
      below=$(printf "%s/$name:" "${layers[@]:1}")
      if [ ${#layers[@]} -eq 1 ]; then below=; fi
      mount -t overlay overlay "$root/$name" \
        -o "lowerdir=$below$lowest,upperdir=${layers[0]}/$name,workdir=${layers[0]}/work/$name" ;;
  esac
done
mount --bind "$VENV" "$root/venv"
IFS=: read -ra shown <<<"$BASE:$SHOWN"
for folder in "${shown[@]}"; do
  mkdir -p "$root/$folder"
  mount --bind "$folder" "$root/$folder"
done
if [ -n "$BUILD" ]; then
  mkdir "$root/context"
  mount --bind "$context" "$root/context"
  exec chroot "$root" env --chdir=/context "$@" sh -c "$command"
fi
mount -t tmpfs -o size=64m tmpfs "$root/dev/shm" # Docker's default
if [ -z "$LAYERS" ]; then
  printf '#!/bin/sh\nexec /venv/bin/python3 "$@"\n' >"$root/of-the-image"
  chmod 755 "$root/of-the-image"
  mount --bind "$root/of-the-image" "$root/usr/bin/python3"
fi
if [ -d "$context/server" ]; then cp -r "$context"/server/. "$root/app"; fi
cp -r "$context"/{model,data,config.yaml} "$root/app"
cp -r "$context"/packages/. "$root/packages"
chown -R 60000:60000 "$root"/{app,packages}
mount -o remount,ro "$root" # readOnlyRootFilesystem
if [ -n "$LAYERS" ]; then mount -o remount,ro "$root/usr"; fi
ip link set lo up
exec chroot --userspec=60000:60000 --groups=60000 "$root" env -i --chdir=/app \
  HOME=/home/app INFERENCE_SERVER_PORT=8080 DISABLE_JSON_LOGGING=1 "$@" sh -c "exec $command"
