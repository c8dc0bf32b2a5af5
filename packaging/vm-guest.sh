#!/bin/sh
# In the guest of packaging/vm.sh, which is slow: hence the long limits.
set -eux

# The package starts coracled; start returns when the socket answers.
dpkg -i /b/coracle_*.deb
systemctl is-active coracled
systemctl stop coracled
systemctl start coracled
test -S /run/coracle/coracle.sock
systemd-analyze verify --man=no /usr/lib/systemd/system/coracled.service
cp /b/crictl.yaml /etc/crictl.yaml
coracle doctor

# A pod, in systemd's cgroups.
mkdir -p /tmp/r/bin
cp /b/busybox /tmp/r/bin/busybox
ln -s busybox /tmp/r/bin/sh
ln -s busybox /tmp/r/bin/sleep
tar -C /tmp/r -c . | coracle image import local.test/busybox:1
cat >/tmp/pod.json <<E
{"metadata":{"name":"web","namespace":"test","uid":"u1"},"log_directory":"/tmp/logs","linux":{"cgroup_parent":"test.slice"}}
E
cat >/tmp/ctr.json <<E
{"metadata":{"name":"main"},"image":{"image":"local.test/busybox:1"},"command":["/bin/sh","-c","while :; do sleep 1; done"],"log_path":"main.log","linux":{"resources":{"memory_limit_in_bytes":67108864}}}
E
/b/crictl -t 100s run --no-pull /tmp/ctr.json /tmp/pod.json
coracle ps | grep running
coracle trace web
coracle stats
coracle exec web -- busybox cat /proc/self/cgroup
coracle exec web -- busybox cat /proc/self/attr/current | grep '^coracle-default (enforce)$'

# Reloads, of good and of bad settings; then restarted, and killed. The pod does not notice.
sed -i 's/^driver.*/&\n[log]\nlevel = "debug"/' /etc/coracle/config.toml
systemctl reload coracled
journalctl -u coracled --no-pager | grep 'settings reloaded'
echo 'oops' >>/etc/coracle/config.toml
systemctl reload coracled
systemctl is-active coracled
journalctl -u coracled --no-pager | grep 'not reloaded'
sed -i '/oops/d' /etc/coracle/config.toml
systemctl restart coracled
coracle ps | grep running
before=$(systemctl show -p MainPID --value coracled)
kill -9 "$before"
for _ in $(seq 100); do
  now=$(systemctl show -p MainPID --value coracled)
  if [ "$now" != 0 ] && [ "$now" != "$before" ] && systemctl is-active coracled; then break; fi
  sleep 0.2
done
coracle ps | grep running

# As at an upgrade, the package is installed over itself: another coracled serves, and the container goes on.
crictl() { /b/crictl "$@"; }
container=$(crictl ps -q)
before=$(systemctl show -p MainPID --value coracled)
dpkg -i /b/coracle_*.deb
systemctl is-active coracled
[ "$(systemctl show -p MainPID --value coracled)" != "$before" ]
[ "$container" ]
[ "$(crictl ps -q)" = "$container" ]

# Upstream's kubelet, with the API server of the other package: its node is Ready, in systemd's cgroups, and runs a
# static pod.
crictl -t 100s rmp -f -a
dpkg -i /b/coracle-kube_*.deb
ip address add 10.99.0.1/32 dev lo
mkdir -p /tmp/manifests
cat >/tmp/manifests/static.yaml <<E
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "local.test/busybox:1", imagePullPolicy: Never, command: [/bin/busybox, sleep, "10000"], resources: {limits: {memory: 64Mi}}}
E
cat >/tmp/kubelet.yaml <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/coracle/coracle.sock
runtimeRequestTimeout: 5m
staticPodPath: /tmp/manifests
cgroupDriver: systemd
failSwapOn: false
E
systemd-run --unit=api coracle-kube apiserver --root /tmp/kube --state /run/kube --bind-address 10.99.0.1 --kubeconfig-out /tmp/admin.kubeconfig
export KUBECONFIG=/tmp/admin.kubeconfig
until [ -e "$KUBECONFIG" ] && /b/kubectl get --raw /readyz; do
  systemctl is-active api
  sleep 1
done
systemd-run --unit=kubelet /b/kubelet --config /tmp/kubelet.yaml --kubeconfig /tmp/admin.kubeconfig --node-ip 10.99.0.1 --hostname-override vm
until /b/kubectl wait node/vm --for=condition=Ready --timeout=60s; do
  systemctl is-active kubelet
  sleep 1
done
/b/kubectl get nodes -o wide
until /b/kubectl wait pod/static-vm --for=condition=Ready --timeout=60s; do
  systemctl is-active kubelet
  sleep 1
done
/b/kubectl get pods -o wide
systemctl status --no-pager kubepods.slice | grep busybox
rm /tmp/manifests/static.yaml
until [ -z "$(crictl ps -q)" ]; do sleep 1; done
systemctl stop kubelet api

# A cluster of the unit, with settings and a manifest of files: it is Ready when start returns. Its process is killed, then
# the unit is restarted, and all is stopped, as at a reboot, and started again.
mkdir -p /etc/coracle/manifests
cat >/etc/coracle/cluster.yaml <<E
node-name: vm
node-ip: 10.99.0.1
timeout: 10m
eviction-hard: memory.available<0%
E
cat >/etc/coracle/manifests/web.yaml <<E
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "local.test/busybox:1", imagePullPolicy: Never, command: [/bin/busybox, sleep, "10000"]}
E
systemd-analyze verify --man=no /usr/lib/systemd/system/coracle.service
systemctl enable --now coracle
export KUBECONFIG=/var/lib/coracle/kubeconfig
ready() {
  until /b/kubectl wait pod/web --for=condition=Ready --timeout=60s; do sleep 1; done
}
ready
coracle status
started() { /b/kubectl get pod web -o jsonpath='{.status.containerStatuses[0].containerID}'; }
before=$(started)
kill -9 "$(systemctl show -p MainPID --value coracle)"
until systemctl is-active coracle; do sleep 1; done
systemctl restart coracle
[ "$(started)" = "$before" ]
coracle ps | grep web
main=$(systemctl show -p MainPID --value coracle)
dpkg -i /b/coracle_*.deb /b/coracle-kube_*.deb
systemctl is-active coracle
[ "$(systemctl show -p MainPID --value coracle)" != "$main" ]
ready
[ "$(started)" = "$before" ]
crictl ps -q --no-trunc | grep -x "${before#*://}"
# What is left after a reboot: units that are enabled, and files outside of /run.
systemctl stop coracle
systemctl stop coracled
coracled purge
systemctl start multi-user.target coracled coracle
ready
[ "$(started)" != "$before" ]
# The key that is taken out, and what is wrong, are told in one line.
echo 'prot: 7443' >>/etc/coracle/cluster.yaml
if coracle up 2>/tmp/said; then exit 1; fi
grep -F 'line 5: unknown key "prot", did you mean "port"?' /tmp/said
systemctl is-active coracle
rm /etc/coracle/cluster.yaml
dpkg -P coracle-kube
if systemctl is-active coracle; then exit 1; fi
rm -r /etc/coracle/manifests

# Removed, with its pods; then purged, with all that it had.
dpkg -r coracle
if pgrep -f containerd-shim-coracle; then exit 1; fi
dpkg -P coracle
test ! -e /var/lib/coracle
test ! -e /etc/coracle
