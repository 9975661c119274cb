/* The course's only script: quizzes, the notebook button, steppers, explorers, timelines that
   answer, words that explain themselves, search and print. Every page reads without it. It asks nothing of the network. Its parts are the files of
   docs/_script, put together by docs/_ext/course/script.py. */
"use strict";
