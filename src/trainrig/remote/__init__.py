"""Reaching a machine from elsewhere, and work that outlives the terminal that began it.

detached    jobs: started, listed, followed, ended; each a folder of its own
setups      what was set up to be reached: its files, its unit, and how it is taken back
tunnels     forwards by OpenSSH, frp and cloudflared as files that expose nothing unprotected
notebook    JupyterLab on loopback with its token
link_test   latency, throughput and loss to a host, and which hop limits
audit       what exposes this machine: settings of sshd, frp and Jupyter
"""
