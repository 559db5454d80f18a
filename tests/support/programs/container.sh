# Run the server of a build context with the folders, user and process id that its image has.
# Usage, in new mount, pid and network namespaces: container.sh ROOT CONTEXT VENV BASE COMMAND
# As in NVIDIA's images from 26.03 on, the first python3 on PATH has none of the server's packages
# (tensorrtllm_backend r26.07, dockerfile/Dockerfile.triton.trt_llm_backend); /usr/bin/python3 has.
set -e
root=$1 context=$2 venv=$3 base=$4 command=$5
mount -t tmpfs -o mode=755 tmpfs "$root"
for name in bin dev etc lib lib64 opt sbin sys usr var; do
  if [ -L "/$name" ]; then
    cp -P "/$name" "$root/"
  elif [ -d "/$name" ]; then
    mkdir "$root/$name"
    mount --rbind "/$name" "$root/$name"
  fi
done
mkdir -p "$root"/{first,tmp,proc,venv,app,packages,workspace,home/app} "$root/$base"
mount -t tmpfs -o size=64m tmpfs "$root/dev/shm" # Docker's default
mount -t proc proc "$root/proc"
for name in tmp workspace home/app; do # all that the manifests let it write to
  mount -t tmpfs -o mode=1777 tmpfs "$root/$name"
done
mount --bind "$base" "$root/$base"
mount --bind "$venv" "$root/venv"
printf '#!/bin/sh\nexec /venv/bin/python3 "$@"\n' >"$root/first/of-the-image"
printf '#!/bin/sh\nexec /venv/bin/python3 -I -S "$@"\n' >"$root/first/python3"
chmod 755 "$root"/first/*
mount --bind "$root/first/of-the-image" "$root/usr/bin/python3"
if [ -d "$context/server" ]; then cp -r "$context"/server/. "$root/app"; fi
cp -r "$context"/{model,data,config.yaml} "$root/app"
cp -r "$context"/packages/. "$root/packages"
chown -R 60000:60000 "$root"/{app,packages}
mount -o remount,ro "$root" # readOnlyRootFilesystem
ip link set lo up
exec chroot --userspec=60000:60000 --groups=60000 "$root" env -i \
  PATH=/first:/venv/bin:/usr/bin:/bin HOME=/home/app INFERENCE_SERVER_PORT=8080 \
  DISABLE_JSON_LOGGING=1 sh -c "cd /app && exec $command"
