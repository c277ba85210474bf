"""Six problems of GradBench, the successor of ADBench, by tapegrad and by its peers.

github.com/gradbench/gradbench; Srajer, Kukelova and Fitzgibbon, A benchmark of selected algorithmic
differentiation tools (2018). Each module states one problem, written from its definition; sizes are
GradBench's, inputs random.
"""
